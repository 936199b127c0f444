// SHA256SUMS: is the bundle as it was exported?
#pragma once

#include <string>

// Throws std::runtime_error that names every file which is missing or was changed.
void check_sums(const std::string &folder);
