// Reading mapped files as fast as their disk gives them.
#pragma once

#include <cstddef>
#include <filesystem>
#include <functional>
#include <span>
#include <vector>

namespace deltatrain {

// Starts to read a part of a mapped file into memory and does not wait for it. Reading a map page
// by page otherwise waits for one small request after another.
void read_ahead(std::span<const std::byte> part);

// A part of a file that is mapped as a whole.
struct FilePart {
  const std::filesystem::path* path = nullptr;
  std::span<const std::byte> file;  // the map of all of it
  std::span<const std::byte> bytes;
};

// Piece by piece: the index of the part, where in it the piece begins, its bytes.
using PieceConsumer =
    std::function<void(size_t part, size_t begin, std::span<const std::byte> piece)>;

// Reads parts of files one after the other, with several requests to the disk at a time, and past
// the page cache except where it holds the bytes already: filling and mapping its pages takes
// longer than digesting and copying them. `consume` is called on this thread, with at most 2 MiB at
// a time. Parts should come as they lie in their files. Takes 16 MiB. FileError (bad input) where a
// file can't be read or has become shorter.
void read_parts(const std::vector<FilePart>& parts, const PieceConsumer& consume);

}  // namespace deltatrain
