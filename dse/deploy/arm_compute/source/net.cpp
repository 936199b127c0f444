#include "net.hpp"

#include <cstring>
#include <fstream>
#include <regex>
#include <stdexcept>
#include <utility>

using namespace arm_compute;
using graph::ITensorAccessor;
using graph::ITensorAccessorUPtr;
using graph::TensorDescriptor;

Array read_npy(const std::string &path) {
    std::ifstream file(path, std::ios::binary);
    if (!file) throw std::runtime_error(path + ": can not be read");
    char start[10] = {};
    file.read(start, sizeof start);
    if (!file || std::memcmp(start, "\x93NUMPY\x01\x00", 8) != 0) {
        throw std::runtime_error(path + ": expected a .npy file of version 1.0");
    }
    const std::size_t length = std::uint8_t(start[8]) + 256U * std::uint8_t(start[9]);
    std::string header(length, ' ');
    file.read(&header[0], std::streamsize(length));
    std::smatch found;
    const std::regex form("'descr': '([^']*)'.*'fortran_order': (True|False).*'shape': \\(([^)]*)\\)");
    if (!file || !std::regex_search(header, found, form) || found[1] != "<f4" || found[2] != "False") {
        throw std::runtime_error(path + ": expected 32-bit floats, row by row; the header says " + header);
    }
    Array array;
    std::size_t n = 1;
    const std::string sizes = found[3];
    const std::regex number("[0-9]+");
    for (std::sregex_iterator at(sizes.begin(), sizes.end(), number), end; at != end; ++at) {
        array.shape.push_back(std::stoul(at->str()));
        n *= array.shape.back();
    }
    array.values.resize(n);
    file.read(reinterpret_cast<char *>(array.values.data()), std::streamsize(n * sizeof(float)));
    if (!file || file.peek() != std::ifstream::traits_type::eof()) {
        throw std::runtime_error(path + ": its size does not fit its shape");
    }
    return array;
}

namespace {

// Tensors of the library may have gaps between rows: go over them row by row.
template <typename Move>
void for_each_row(ITensor &tensor, Move move) {
    Window window;
    window.use_tensor_dimensions(tensor.info()->tensor_shape(), Window::DimY);
    const std::size_t row = tensor.info()->dimension(0);
    std::size_t at = 0;
    execute_window_loop(window, [&](const Coordinates &id) {
        move(reinterpret_cast<float *>(tensor.ptr_to_element(id)), at, row);
        at += row;
    });
}

void fill(ITensor &tensor, const float *source) {
    for_each_row(tensor, [&](float *row, std::size_t at, std::size_t n) {
        std::memcpy(row, source + at, n * sizeof(float));
    });
}

class Constant final : public ITensorAccessor {
public:
    explicit Constant(std::string path) : path_(std::move(path)) {}
    bool access_tensor(ITensor &tensor) override {
        const Array array = read_npy(path_);
        if (array.values.size() != tensor.info()->tensor_shape().total_size()) {
            throw std::runtime_error(path_ + ": has " + std::to_string(array.values.size()) +
                                     " values, the layer needs " +
                                     std::to_string(tensor.info()->tensor_shape().total_size()));
        }
        fill(tensor, array.values.data());
        return true;
    }

private:
    std::string path_;
};

class Input final : public ITensorAccessor {
public:
    Input(Frame *const &frame, std::size_t slot) : frame_(frame), slot_(slot) {}
    bool access_tensor(ITensor &tensor) override {
        fill(tensor, frame_->values[slot_]);
        return true;
    }

private:
    Frame *const &frame_;
    std::size_t slot_;
};

class Output final : public ITensorAccessor {
public:
    Output(Frame *const &frame, std::size_t slot) : frame_(frame), slot_(slot) {}
    bool access_tensor(ITensor &tensor) override {
        float *target = frame_->own[slot_].data();
        for_each_row(tensor, [&](const float *row, std::size_t at, std::size_t n) {
            std::memcpy(target + at, row, n * sizeof(float));
        });
        return false;  // one frame for each call of Stream::run
    }

private:
    Frame *const &frame_;
    std::size_t slot_;
};

TensorDescriptor descriptor(const TensorShape &shape) {
    return TensorDescriptor(shape, DataType::F32, QuantizationInfo(), DataLayout::NHWC);
}

}  // namespace

Net::Net(graph::frontend::Stream &stream, std::string weights, const Slots &slots, Frame *const &frame)
    : stream_(stream), weights_(std::move(weights)), slots_(slots), frame_(frame) {
    stream_ << graph::Target::NEON << graph::FastMathHint::Disabled;
}

Net::SubStream Net::input(int key, const TensorShape &shape) {
    SubStream made(stream_);
    made << graph::frontend::InputLayer(descriptor(shape), std::make_unique<Input>(frame_, slots_.at(key)));
    return made;
}

Net::SubStream Net::value(const char *file, const TensorShape &shape) {
    SubStream made(stream_);
    made << graph::frontend::ConstantLayer(descriptor(shape), constant(file));
    return made;
}

ITensorAccessorUPtr Net::constant(const char *file) const {
    return std::make_unique<Constant>(weights_ + "/" + file);
}

void Net::output(int key, SubStream value) {
    value << graph::frontend::OutputLayer(std::make_unique<Output>(frame_, slots_.at(key)));
}
