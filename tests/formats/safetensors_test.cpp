#include "formats/safetensors.h"

#include <gmock/gmock.h>

#include <cstring>
#include <fstream>

#include "base/error.h"
#include "base/hash.h"
#include "support/test_files.h"

namespace deltatrain::formats {
namespace {

using test::TemporaryFolder;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

void write_raw(const std::filesystem::path& path, uint64_t header_length, const std::string& rest) {
  std::ofstream file(path, std::ios::binary);
  for (int i = 0; i < 8; ++i) file.put(static_cast<char>(header_length >> (8 * i)));
  file << rest;
}

// The message with which a file of this header and data is refused, without the path at its front.
std::string refusal_of(const std::string& header, size_t data_bytes) {
  const TemporaryFolder folder;
  const auto path = folder / "x.safetensors";
  write_raw(path, header.size(), header + std::string(data_bytes, '\1'));
  try {
    const SafetensorsFile file(path);
  } catch (const FormatError& error) {
    const std::string message = error.what();
    EXPECT_EQ(message.find(path.string() + ": "), 0U) << message;
    EXPECT_EQ(message.find('\n'), std::string::npos) << message;
    return message.substr(std::min(message.size(), path.string().size() + 2));
  }
  return "accepted";
}

std::string entry(const std::string& name, const std::string& dtype, const std::string& shape,
                  const std::string& offsets) {
  return "\"" + name + "\":{\"dtype\":\"" + dtype + "\",\"shape\":" + shape +
         ",\"data_offsets\":" + offsets + "}";
}

TEST(SafetensorsFileTest, ReadsWhatTheReferenceLibraryWrites) {
  const SafetensorsFile file(test::golden_path("safetensors_reference.safetensors"));
  EXPECT_EQ(file.metadata().at("format"), "pt");
  ASSERT_EQ(file.tensors().size(), 6U);
  const StoredTensor& matrix = file.at("b.matrix");
  EXPECT_EQ(matrix.dtype, DType::kF32);
  EXPECT_EQ(matrix.shape, (Shape{2, 3}));
  float values[6];
  read_tensor(matrix, Tensor(values, DType::kF32, {2, 3}), "", "");
  EXPECT_THAT(values, ElementsAre(0.0F, 0.5F, 1.0F, 1.5F, 2.0F, 2.5F));
  EXPECT_EQ(file.at("scalar").shape.rank(), 0);
  EXPECT_EQ(file.at("empty").shape, (Shape{0, 4}));
  EXPECT_TRUE(file.at("empty").bytes.empty());
  int64_t ids[2];
  read_tensor(file.at("ids"), Tensor(ids, DType::kI64, {2}), "", "");
  EXPECT_THAT(ids, ElementsAre(-1, 1LL << 40));
}

TEST(SafetensorsWriterTest, WritesTheReferenceLibrarysBytes) {
  const auto reference = test::golden_path("safetensors_reference.safetensors");
  const SafetensorsFile source(reference);
  std::vector<TensorSpec> specs;
  for (const auto& [name, tensor] : source.tensors())
    specs.push_back({name, tensor.dtype, tensor.shape});
  const TemporaryFolder folder;
  SafetensorsWriter writer(folder / "out.safetensors", specs);
  for (const auto& [name, tensor] : source.tensors()) {
    const auto half = static_cast<int64_t>(tensor.bytes.size() / 2);
    const auto all = static_cast<int64_t>(tensor.bytes.size());
    writer.write(name, half, tensor.bytes.data() + half, all - half);  // pieces in any order
    writer.write(name, 0, tensor.bytes.data(), half);
  }
  EXPECT_FALSE(std::filesystem::exists(folder / "out.safetensors"));
  writer.commit();
  EXPECT_EQ(read_file(folder / "out.safetensors"), read_file(reference));
  EXPECT_EQ(writer.file_bytes(), static_cast<int64_t>(std::filesystem::file_size(reference)));
}

TEST(SafetensorsWriterTest, LeavesNothingBehindWithoutCommit) {
  const TemporaryFolder folder;
  { const SafetensorsWriter writer(folder / "out.safetensors", {{"a", DType::kF32, {4}}}); }
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

TEST(SafetensorsWriterTest, RefusesUnwrittenBytesAndRepeatedNames) {
  const TemporaryFolder folder;
  SafetensorsWriter writer(folder / "out.safetensors", {{"a", DType::kF32, {4}}});
  const float part[2] = {1, 2};
  writer.write("a", 0, part, sizeof part);
  EXPECT_THROW(writer.commit(), InternalError);
  EXPECT_THROW(SafetensorsWriter(folder / "two.safetensors",
                                 {{"a", DType::kF32, {1}}, {"a", DType::kF32, {1}}}),
               FormatError);
}

TEST(SafetensorsFileTest, AcceptsUnsortedHeadersAndMissingMetadata) {
  const TemporaryFolder folder;
  const std::string header = "{" + entry("late", "U8", "[2]", "[4,6]") + "," +
                             entry("early", "F32", "[1]", "[0,4]") + "}   ";
  write_raw(folder / "x.safetensors", header.size(), header + std::string(4, '\0') + "ab");
  const SafetensorsFile file(folder / "x.safetensors");
  EXPECT_EQ(static_cast<char>(file.at("late").bytes[1]), 'b');
  EXPECT_TRUE(file.metadata().empty());
  EXPECT_EQ(file.find("none"), nullptr);
  EXPECT_THROW(file.at("none"), FormatError);
}

TEST(SafetensorsFileTest, AcceptsAFileWithoutTensors) {
  const TemporaryFolder folder;
  write_raw(folder / "x.safetensors", 2, "{}");
  EXPECT_TRUE(SafetensorsFile(folder / "x.safetensors").tensors().empty());
}

TEST(SafetensorsFileTest, RefusesLengthsBeyondTheFile) {
  const TemporaryFolder folder;
  const auto path = folder / "x.safetensors";
  const auto message = [&path] {
    try {
      const SafetensorsFile file(path);
    } catch (const FormatError& error) {
      return std::string(error.what());
    }
    return std::string("accepted");
  };
  std::ofstream(path) << "short";
  EXPECT_EQ(message(), path.string() + ": expected a safetensors file of 8 bytes or more, got 5");
  write_raw(path, 100, "{}");
  EXPECT_EQ(message(),
            path.string() + ": header length: expected at most the 2 bytes that follow, got 100");
  write_raw(path, uint64_t{1} << 62, "{}");
  EXPECT_EQ(message(),
            path.string() + ": header length: expected at most 100000000, got 4611686018427387904");
  write_raw(path, 0, "");
  EXPECT_EQ(message(),
            path.string() + ": header: expected JSON that starts with {, got something else");
}

TEST(SafetensorsFileTest, RefusesRangesThatDoNotCoverTheData) {
  EXPECT_EQ(refusal_of("{" + entry("w", "F32", "[2]", "[0,8]") + "}", 7),
            "w: data_offsets: expected a range within 7 bytes of data, got [0, 8)");
  EXPECT_EQ(refusal_of("{" + entry("w", "F32", "[2]", "[8,0]") + "}", 8),
            "w: data_offsets: expected a range within 8 bytes of data, got [8, 0)");
  EXPECT_EQ(refusal_of("{" + entry("w", "F32", "[2]", "[0,8]") + "}", 9),
            "data: expected 8 bytes as the header says, got 9");
  EXPECT_EQ(
      refusal_of(
          "{" + entry("a", "U8", "[1]", "[0,1]") + "," + entry("b", "U8", "[1]", "[2,3]") + "}", 3),
      "b: data_offsets: expected to begin at 1, where the tensor before it ends, got 2 (a hole)");
  EXPECT_EQ(
      refusal_of(
          "{" + entry("a", "U8", "[2]", "[0,2]") + "," + entry("b", "U8", "[2]", "[1,3]") + "}", 3),
      "b: data_offsets: expected to begin at 2, where the tensor before it ends, got 1 (an "
      "overlap)");
  EXPECT_EQ(
      refusal_of("{" + entry("a", "U8", "[2]", "[1,3]") + "}", 3),
      "a: data_offsets: expected to begin at 0, where the tensor before it ends, got 1 (a hole)");
}

TEST(SafetensorsFileTest, RefusesShapesThatDisagreeOrOverflow) {
  EXPECT_EQ(refusal_of("{" + entry("w", "BF16", "[3,5]", "[0,8]") + "}", 8),
            "w: data_offsets: expected 30 bytes for bf16 [3, 5], got 8");
  EXPECT_EQ(refusal_of("{" + entry("w", "F32", "[4294967296,4294967296]", "[0,8]") + "}", 8),
            "w: shape: expected less than 2^63 bytes, got [4294967296, 4294967296]");
  EXPECT_EQ(refusal_of("{" + entry("w", "F32", "[9223372036854775808]", "[0,8]") + "}", 8),
            "w: shape: expected a 63-bit number, got 9223372036854775808");
  EXPECT_EQ(refusal_of("{" + entry("w", "F32", "[-1]", "[0,8]") + "}", 8),
            "w: shape: expected a whole number of 0 or more, got -1");
  EXPECT_EQ(refusal_of("{" + entry("w", "F32", "[1,1,1,1,1,1]", "[0,4]") + "}", 4),
            "w: shape: expected at most 5 axes, got more");
  EXPECT_EQ(
      refusal_of(
          "{" + entry("w", "F32", "[0,9223372036854775807,9223372036854775807]", "[0,0]") + "}", 0),
      "accepted");
}

TEST(SafetensorsFileTest, RefusesUnknownDtypesAndFields) {
  EXPECT_EQ(refusal_of("{" + entry("w", "I8", "[4]", "[0,4]") + "}", 4),
            "w: dtype: expected one of F64, F32, BF16, F16, I64, I32, U16, U8, got \"I8\"");
  EXPECT_EQ(refusal_of("{\"w\":{\"dtype\":\"U8\",\"shape\":[1]}}", 1),
            "w: data_offsets: expected this key, got none");
  EXPECT_EQ(
      refusal_of("{\"w\":{\"dtype\":\"U8\",\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}",
                 1),
      "w: dtype: expected one such key, got two");
  EXPECT_EQ(refusal_of("{\"w\":{\"color\":1}}", 1),
            "w: color: expected only dtype, shape and data_offsets");
  EXPECT_EQ(refusal_of("{" + entry("w", "U8", "[1]", "[0,1,2]") + "}", 1),
            "w: data_offsets: expected two numbers, got more");
  EXPECT_EQ(refusal_of("{" + entry("w", "U8", "[1]", "[0]") + "}", 1),
            "w: data_offsets: expected two numbers, got 1");
  EXPECT_EQ(refusal_of("{" + entry("w", "U8", "[1.5]", "[0,1]") + "}", 1),
            "w: shape: expected a whole number of 0 or more, got 1.5");
}

TEST(SafetensorsFileTest, RefusesDuplicatesAndForeignJson) {
  const std::string w = entry("w", "U8", "[1]", "[0,1]");
  EXPECT_EQ(refusal_of("{" + w + "," + w + "}", 1), "w: expected one entry of this name, got two");
  EXPECT_EQ(refusal_of("{\"__metadata__\":{\"a\":\"1\",\"a\":\"2\"}}", 0),
            "__metadata__: __metadata__.a: expected one entry of this name, got two");
  EXPECT_EQ(refusal_of("{\"__metadata__\":{\"a\":1}}", 0), "__metadata__: a: expected text, got 1");
  EXPECT_EQ(refusal_of("{\"w\":[1]}", 0), "w: expected an object, got an array");
  EXPECT_EQ(refusal_of("{\"w\":null}", 0), "w: expected an object, got null");
  EXPECT_EQ(refusal_of("[]", 0), "header: expected JSON that starts with {, got something else");
  EXPECT_THAT(refusal_of("{\"w\":", 0), HasSubstr("expected JSON, got something else"));
  EXPECT_THAT(refusal_of("{\"w\xff\":{}}", 0), HasSubstr("expected JSON, got something else"));
  // Depth is refused at the third level, whatever its length.
  std::string deep = "{\"w\":";
  for (int i = 0; i < 200000; ++i) deep += "{\"a\":";
  EXPECT_EQ(refusal_of(deep, 0), "w: a: expected only dtype, shape and data_offsets");
  EXPECT_THAT(refusal_of("{\"w\":{\"shape\":[" + std::string(200000, '['), 0),
              HasSubstr("got an array"));
}

TEST(ReadTensorTest, ConvertsFloatsAndRefusesTheRest) {
  const float values[3] = {1.0F, -2.5F, 1.00390625F};
  const StoredTensor stored{DType::kF32, {3}, std::as_bytes(std::span(values))};
  BFloat16 narrow[3];
  read_tensor(stored, Tensor(narrow, DType::kBF16, {3}), "f", "w");
  EXPECT_EQ(narrow[2].bits, 0x3f80);  // half way between two neighbours: to even
  int32_t whole[3];
  try {
    read_tensor(stored, Tensor(whole, DType::kI32, {3}), "f", "w");
    FAIL();
  } catch (const ShapeError& error) {
    EXPECT_STREQ(error.what(), "f: w: expected i32 [3], got f32 [3]");
  }
  double other[4];
  EXPECT_THROW(read_tensor(stored, Tensor(other, DType::kF64, {4}), "f", "w"), ShapeError);
}

}  // namespace
}  // namespace deltatrain::formats
