#include "formats/npy.h"

#include <gmock/gmock.h>

#include <fstream>

#include "base/error.h"
#include "support/test_files.h"

namespace deltatrain::formats {
namespace {

using test::TemporaryFolder;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string npy(const std::string& header, const std::string& data) {
  std::string text = "\x93NUMPY";
  text += '\1';
  text += '\0';
  text += static_cast<char>(header.size() & 255U);
  text += static_cast<char>(header.size() >> 8U);
  return text + header + data;
}

std::string refusal_of(const std::string& content) {
  const TemporaryFolder folder;
  std::ofstream(folder / "x.npy", std::ios::binary) << content;
  try {
    const NpyFile file(folder / "x.npy");
  } catch (const FormatError& error) {
    return std::string(error.what()).substr((folder / "x.npy").string().size() + 2);
  }
  return "accepted";
}

TEST(NpyFileTest, ReadsWhatNumPyWrites) {
  const NpyFile file(test::golden_path("npy_reference.npy"));
  EXPECT_EQ(file.array().dtype, DType::kI32);
  EXPECT_EQ(file.array().shape, (Shape{2, 3}));
  int32_t values[6];
  read_tensor(file.array(), Tensor(values, DType::kI32, {2, 3}), "", "");
  EXPECT_THAT(values, ElementsAre(1, 791, 6864, 315, 9822, 374));
}

TEST(NpyFileTest, TakesAScalarAndOneAxis) {
  EXPECT_EQ(refusal_of(npy("{'descr': '<f8', 'fortran_order': False, 'shape': (), }\n",
                           std::string(8, 'x'))),
            "accepted");
  EXPECT_EQ(refusal_of(npy("{'descr': '<u2', 'fortran_order': True, 'shape': (3,), }\n",
                           std::string(6, 'x'))),
            "accepted");
}

TEST(NpyFileTest, RefusesByNameWhatItDoesNotRead) {
  EXPECT_EQ(refusal_of("PK"), "expected a .npy file, got something else");
  EXPECT_EQ(refusal_of(npy("{'descr': '>i4', 'fortran_order': False, 'shape': (1,)}", "1234")),
            "descr: expected one of <f8, <f4, <i8, <i4, <u2, |u1, got >i4");
  EXPECT_EQ(
      refusal_of(npy("{'descr': [('a', '<i4')], 'fortran_order': False, 'shape': (1,)}", "1234")),
      "descr: expected one element type, got a record type");
  EXPECT_EQ(refusal_of(npy("{'descr': '<i4', 'fortran_order': True, 'shape': (1, 1)}", "1234")),
            "fortran_order: expected False, got True");
  EXPECT_EQ(refusal_of(npy("{'descr': '<i4', 'fortran_order': False, 'shape': (2,)}", "1234")),
            "data: expected 8 bytes, got 4");
  EXPECT_EQ(
      refusal_of(npy("{'descr': '<i4', 'fortran_order': False, 'shape': (4611686018427387904, 4)}",
                     "1234")),
      "data: expected less than 2^63 bytes, got 4");
  EXPECT_EQ(refusal_of(npy("{'descr': '<i4', 'fortran_order': False, 'shape': (-2,)}", "1234")),
            "shape: expected numbers of 0 or more, got something else");
  EXPECT_EQ(refusal_of(npy("{'descr': '<i4', 'fortran_order': False}", "1234")),
            "shape: expected this key, got none");
  EXPECT_THAT(refusal_of(npy("{'descr': '<i4", "1234")), HasSubstr("expected text that ends"));
  EXPECT_THAT(refusal_of(npy("{'descr': '<i4', 'fortran_order': False, 'shape': (1,)} {", "1234")),
              HasSubstr("expected nothing after }"));
  std::string cut = npy("{'descr': '<i4', 'fortran_order': False, 'shape': (1,)}", "");
  cut.resize(30);
  EXPECT_THAT(refusal_of(cut), HasSubstr("header length"));
}

}  // namespace
}  // namespace deltatrain::formats
