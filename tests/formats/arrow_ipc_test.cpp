// Files written by Hugging Face datasets and by pyarrow; what is in them:
// tests/golden/make_arrow.py.
#include "formats/arrow_ipc.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/files.h"
#include "support/test_files.h"

namespace deltatrain::formats {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::vector<int32_t> row(const ArrowListColumn& column, int64_t index) {
  std::vector<int32_t> ids(static_cast<size_t>(column.length(index)));
  column.read(index, 0, ids);
  return ids;
}

template <class Call>
std::string message(Call call) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kBadInput);
    return error.what();
  }
  return "accepted";
}

ArrowFile golden(const std::string& name) { return ArrowFile(test::golden_path(name)); }

TEST(ArrowFileTest, ReadsTheStreamOfDatasets) {
  const ArrowFile file = golden("arrow_tokens.arrow");
  EXPECT_EQ(file.num_rows(), 7);
  ASSERT_EQ(file.fields().size(), 1U);
  EXPECT_EQ(file.fields()[0].type_name, "list<int32>");
  const ArrowListColumn column = file.list_column(0, "input_ids");
  EXPECT_EQ(column.num_rows(), 7);
  EXPECT_THAT(row(column, 0), ElementsAre(0, 1, 2, 3, 4));
  EXPECT_THAT(row(column, 6), ElementsAre(600, 601, 602, 603, 604));
  std::vector<int32_t> part(2);
  column.read(3, 2, part);
  EXPECT_THAT(part, ElementsAre(302, 303));
}

TEST(ArrowFileTest, StepsOverOtherColumnsAndReadsLargeListsOfInt64) {
  const ArrowFile file = golden("arrow_wide.arrow");
  EXPECT_EQ(file.num_batches(), 2);
  EXPECT_EQ(file.num_rows(), 5);
  const ArrowListColumn first = file.list_column(0, "input_ids");
  EXPECT_THAT(row(first, 0), ElementsAre(1, 2, 3));
  EXPECT_EQ(first.length(1), 0);
  EXPECT_FALSE(first.is_null(1));
  const ArrowListColumn second = file.list_column(1, "input_ids");
  EXPECT_THAT(row(second, 0), ElementsAre(7, 128255));
  EXPECT_TRUE(second.is_null(1));
  EXPECT_THAT(message([&] { row(second, 2); }),
              HasSubstr("row 2, position 0: expected an id of 32 bits, got 1099511627776"));
}

TEST(ArrowFileTest, ReadsTextOfTheFileForm) {
  const ArrowFile file = golden("arrow_text.arrow");
  EXPECT_EQ(file.num_rows(), 4);
  const ArrowTextColumn text = file.text_column(0, "text");
  EXPECT_EQ(text.text(0), "one");
  EXPECT_EQ(text.text(1), std::nullopt);
  EXPECT_EQ(text.text(2), "");
  EXPECT_EQ(file.text_column(1, "text").text(0), "vier \xc3\xa9\xf0\x9f\x91\x8d");
  const ArrowTextColumn large = file.text_column(0, "long_text");
  EXPECT_EQ(large.text(0), "first");
  EXPECT_EQ(large.text(2), std::nullopt);
  EXPECT_THAT(row(file.list_column(0, "rows"), 2), ElementsAre(5, 6));
  EXPECT_THAT(row(file.list_column(1, "rows"), 0), ElementsAre(7, 8));
}

TEST(ArrowFileTest, NamesColumnsThatAreAbsentOrOfAnotherType) {
  const ArrowFile file = golden("arrow_text.arrow");
  EXPECT_THAT(
      message([&] { file.text_column(0, "content"); }),
      HasSubstr("column content: expected this column, got only id, text, long_text, rows"));
  EXPECT_THAT(message([&] { file.list_column(0, "text"); }),
              HasSubstr("batch 0, column text: expected a list of int32 or int64, got utf8"));
  EXPECT_THAT(message([&] { file.text_column(0, "rows"); }),
              HasSubstr("column rows: expected a text, got fixed list<int32>"));
  EXPECT_THAT(message([] { golden("arrow_wide.arrow").text_column(0, "kind"); }),
              HasSubstr("got utf8 by dictionary"));
}

TEST(ArrowFileTest, RefusesCompressedData) {
  EXPECT_THAT(message([] { golden("arrow_zstd.arrow"); }),
              HasSubstr("arrow_zstd.arrow: compressed Arrow data (zstd)"));
}

// At the borders between messages too, where only the end marker tells.
TEST(ArrowFileTest, CutOffAnywhereIsNamed) {
  const test::TemporaryFolder folder;
  const std::string bytes = read_file(test::golden_path("arrow_tokens.arrow"));
  write_file_atomically(folder / "cut.arrow", bytes);
  for (size_t size = bytes.size(); size-- > 0;) {
    std::filesystem::resize_file(folder / "cut.arrow", size);
    EXPECT_THAT(message([&] { ArrowFile(folder / "cut.arrow"); }), HasSubstr("cut.arrow: byte "));
  }
}

// Every byte set to other values: a refusal or other content, never a crash or a read past the
// file.
TEST(ArrowFileTest, DamagedBytesNeverReadPastTheFile) {
  const test::TemporaryFolder folder;
  for (const char* name : {"arrow_tokens.arrow", "arrow_wide.arrow"}) {
    const std::string bytes = read_file(test::golden_path(name));
    write_file_atomically(folder / "damaged.arrow", bytes);
    std::fstream damaged(folder / "damaged.arrow", std::ios::binary | std::ios::in | std::ios::out);
    const auto put = [&](size_t place, char value) {
      damaged.seekp(static_cast<std::streamoff>(place));
      damaged.put(value).flush();
    };
    for (size_t i = 0; i < bytes.size(); ++i) {
      for (const char value : {'\x00', '\x7f', '\xff', bytes[i]}) {
        put(i, value);
        message([&] {
          const ArrowFile file(folder / "damaged.arrow");
          for (int64_t b = 0; b < file.num_batches(); ++b) {
            const ArrowListColumn column = file.list_column(b, "input_ids");
            for (int64_t r = 0; r < column.num_rows(); ++r) {
              if (!column.is_null(r)) row(column, r);
            }
          }
        });
      }
    }
    EXPECT_EQ(read_file(folder / "damaged.arrow"), bytes);
  }
}

// Counts of rows are added up before anything of them is read.
TEST(ArrowFileTest, CountsOfRowsThatNoFileHoldsAreRefused) {
  const test::TemporaryFolder folder;
  const std::string bytes = read_file(test::golden_path("arrow_tokens.arrow"));
  const int64_t rows = golden("arrow_tokens.arrow").batch_rows(0);
  const int64_t many = int64_t{1} << 62;
  int refused = 0;
  for (size_t i = 0; i + sizeof rows <= bytes.size(); i += sizeof rows) {
    if (std::memcmp(&bytes[i], &rows, sizeof rows) != 0) continue;
    std::string damaged = bytes;
    std::memcpy(&damaged[i], &many, sizeof many);
    write_file_atomically(folder / "rows.arrow", damaged);
    refused += message([&] {
                 ArrowFile(folder / "rows.arrow");
               }).find("a batch of 4611686018427387904 rows") != std::string::npos;
  }
  EXPECT_GE(refused, 1);
}

TEST(ArrowListWriterTest, ReaderReadsWhatItWrote) {
  const test::TemporaryFolder folder;
  ArrowListWriter writer(folder / "rows.arrow", "input_ids", "{\"info\": {}}");
  std::vector<int32_t> tokens(21);
  std::iota(tokens.begin(), tokens.end(), 5);
  writer.write_batch(tokens, 7);
  writer.write_batch(std::span(tokens).first(7), 7);
  const auto [digest, bytes] = writer.commit();
  EXPECT_EQ(digest.size(), 64U);
  EXPECT_EQ(bytes, static_cast<int64_t>(read_file(folder / "rows.arrow").size()));
  const ArrowFile file(folder / "rows.arrow");
  EXPECT_EQ(file.num_rows(), 4);
  EXPECT_THAT(row(file.list_column(0, "input_ids"), 2), ElementsAre(19, 20, 21, 22, 23, 24, 25));
  EXPECT_THAT(row(file.list_column(1, "input_ids"), 0), ElementsAre(5, 6, 7, 8, 9, 10, 11));
}

}  // namespace
}  // namespace deltatrain::formats
