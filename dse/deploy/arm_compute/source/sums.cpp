#include "sums.hpp"

#include <array>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <stdexcept>
#include <vector>

namespace {

// SHA-256, FIPS 180-4.
class Sha256 {
public:
    void add(const unsigned char *data, std::size_t n) {
        total_ += n;
        while (n > 0) {
            const std::size_t part = std::min(n, block_.size() - filled_);
            std::memcpy(block_.data() + filled_, data, part);
            filled_ += part;
            data += part;
            n -= part;
            if (filled_ == block_.size()) mix();
        }
    }

    std::string hex() {
        const std::uint64_t bits = total_ * 8;
        const unsigned char one = 0x80, zero = 0;
        add(&one, 1);
        while (filled_ != 56) add(&zero, 1);
        for (int shift = 56; shift >= 0; shift -= 8) {
            const auto byte = static_cast<unsigned char>(bits >> shift);
            add(&byte, 1);
        }
        std::string text;
        for (std::uint32_t word : state_) {
            for (int shift = 28; shift >= 0; shift -= 4) text += "0123456789abcdef"[(word >> shift) & 15];
        }
        return text;
    }

private:
    static std::uint32_t turn(std::uint32_t x, int n) { return (x >> n) | (x << (32 - n)); }

    void mix() {
        static const std::uint32_t k[64] = {
            0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
            0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
            0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
            0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
            0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
            0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
            0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
            0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};
        std::uint32_t w[64];
        for (int i = 0; i < 16; ++i) {
            w[i] = std::uint32_t(block_[4 * i]) << 24 | std::uint32_t(block_[4 * i + 1]) << 16 |
                   std::uint32_t(block_[4 * i + 2]) << 8 | std::uint32_t(block_[4 * i + 3]);
        }
        for (int i = 16; i < 64; ++i) {
            w[i] = (turn(w[i - 2], 17) ^ turn(w[i - 2], 19) ^ (w[i - 2] >> 10)) + w[i - 7] +
                   (turn(w[i - 15], 7) ^ turn(w[i - 15], 18) ^ (w[i - 15] >> 3)) + w[i - 16];
        }
        auto s = state_;
        for (int i = 0; i < 64; ++i) {
            const std::uint32_t first = s[7] + (turn(s[4], 6) ^ turn(s[4], 11) ^ turn(s[4], 25)) +
                                        ((s[4] & s[5]) ^ (~s[4] & s[6])) + k[i] + w[i];
            const std::uint32_t second = (turn(s[0], 2) ^ turn(s[0], 13) ^ turn(s[0], 22)) +
                                         ((s[0] & s[1]) ^ (s[0] & s[2]) ^ (s[1] & s[2]));
            s = {first + second, s[0], s[1], s[2], s[3] + first, s[4], s[5], s[6]};
        }
        for (std::size_t i = 0; i < s.size(); ++i) state_[i] += s[i];
        filled_ = 0;
    }

    std::array<std::uint32_t, 8> state_{{0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c,
                                         0x1f83d9ab, 0x5be0cd19}};
    std::array<unsigned char, 64> block_{};
    std::size_t filled_ = 0;
    std::uint64_t total_ = 0;
};

std::string sum_of(std::istream &file) {
    Sha256 sum;
    std::vector<char> chunk(1 << 16);
    while (file.read(chunk.data(), std::streamsize(chunk.size())) || file.gcount() > 0) {
        sum.add(reinterpret_cast<const unsigned char *>(chunk.data()), std::size_t(file.gcount()));
    }
    return sum.hex();
}

}  // namespace

void check_sums(const std::string &folder) {
    std::ifstream list(folder + "/SHA256SUMS");
    std::string faults;
    int n_files = 0;
    for (std::string line; std::getline(list, line); ++n_files) {
        if (line.size() < 67 || line.compare(64, 2, "  ") != 0) {
            throw std::runtime_error(folder + "/SHA256SUMS: expected a sum and a file, got '" + line + "'");
        }
        const std::string name = line.substr(66);
        std::ifstream file(folder + "/" + name, std::ios::binary);
        if (!file) {
            faults += "; " + name + " is missing";
        } else if (sum_of(file) != line.substr(0, 64)) {
            faults += "; " + name + " was changed";
        }
    }
    if (n_files == 0) faults = "; SHA256SUMS is missing or empty";
    if (!faults.empty()) {
        throw std::runtime_error(folder + ": " + faults.substr(2) +
                                 ". Copy the bundle again, or export it again if it was edited");
    }
}
