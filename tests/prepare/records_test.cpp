#include "prepare/records.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/error.h"
#include "prepare/raw_files.h"
#include "support/test_files.h"

namespace deltatrain::prepare {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

// What the parser said, as text: documents as they are, skipped records as "<reason>".
class Listing final : public DocumentSink {
 public:
  void document(std::string_view text) override { records.emplace_back(text); }
  void skipped(const char* reason) override { records.push_back("<" + std::string(reason) + ">"); }
  void replaced(const char* what, int64_t count) override { replacements[what] += count; }

  std::vector<std::string> records;
  Counts replacements;
};

class RecordsTest : public testing::Test {
 protected:
  Listing read(const InputFile& file, int64_t block_bytes = 1 << 19, int64_t begin = 0,
               int64_t end = -1) {
    const auto reader =
        open_block_reader({&file, begin, end < 0 ? file.bytes : end}, options_, block_bytes);
    RecordParser parser(options_);
    Listing listing;
    Block block;
    while (reader->next(block)) parser.parse(block, listing);
    return listing;
  }

  InputFile file(const std::string& name, const std::string& bytes) {
    return find_input_files({test::write_raw(folder_ / name, bytes)}, "auto").files.front();
  }

  std::vector<std::string> lines(const std::string& bytes) {
    return read(file("f.jsonl", bytes)).records;
  }
  std::vector<std::string> text(const std::string& bytes) {
    return read(file("f.txt", bytes)).records;
  }

  std::string refusal(const std::string& name, const std::string& bytes,
                      int64_t block_bytes = 1 << 19) {
    const InputFile input = file(name, bytes);
    try {
      read(input, block_bytes);
    } catch (const FormatError& error) {
      return std::string(error.what()).substr(folder_.path().string().size() + 1);
    }
    return "accepted";
  }

  RecordOptions options_;
  test::TemporaryFolder folder_;
};

const std::string kLines =
    "{\"text\":\"one\"}\n{\"id\":1,\"text\":\"two\\n\\u00e9\"}\n{\"text\": \"three\", \"x\": [1, "
    "{}]}\n";

TEST_F(RecordsTest, ReadsTheTextOfEveryLine) {
  EXPECT_THAT(lines(kLines), ElementsAre("one", "two\n\xc3\xa9", "three"));
}

TEST_F(RecordsTest, LineEndsByteOrderMarkAndBlankLinesDoNotMatter) {
  const std::vector<std::string> want = lines(kLines);
  EXPECT_EQ(lines("\xef\xbb\xbf" + kLines), want);
  EXPECT_EQ(lines(kLines.substr(0, kLines.size() - 1)), want);
  EXPECT_EQ(lines("\n" + kLines + " \t\n\n"), want);
  std::string crlf;
  for (const char c : kLines) crlf += c == '\n' ? std::string("\r\n") : std::string(1, c);
  EXPECT_EQ(lines(crlf), want);
}

TEST_F(RecordsTest, AnySizeOfBlockGivesTheSame) {
  const InputFile input = file("f.jsonl", kLines + "\n" + kLines);
  const std::vector<std::string> want = read(input).records;
  ASSERT_EQ(want.size(), 6U);
  for (int64_t block_bytes = 1; block_bytes < input.bytes + 2; ++block_bytes) {
    EXPECT_EQ(read(input, block_bytes).records, want) << block_bytes;
  }
}

TEST_F(RecordsTest, RangesCutAnywhereGiveEachRecordOnce) {
  const InputFile input = file("f.jsonl", kLines + "\n" + kLines);
  const std::vector<std::string> want = read(input).records;
  for (int64_t cut = 0; cut <= input.bytes; ++cut) {
    for (const int64_t block_bytes : {3, 1 << 19}) {
      std::vector<std::string> got = read(input, block_bytes, 0, cut).records;
      const std::vector<std::string> rest = read(input, block_bytes, cut, input.bytes).records;
      got.insert(got.end(), rest.begin(), rest.end());
      EXPECT_EQ(got, want) << cut;
    }
  }
}

TEST_F(RecordsTest, CompressedFilesGiveTheSame) {
  std::string many;
  for (int i = 0; i < 20000; ++i) many += "{\"text\": \"line " + std::to_string(i * 7919) + "\"}\n";
  const std::vector<std::string> want = lines(many);
  ASSERT_EQ(want.size(), 20000U);
  const std::string half = many.substr(0, many.size() / 2);
  const std::string rest = many.substr(many.size() / 2);
  EXPECT_EQ(read(file("f.jsonl.gz", test::gzip(many))).records, want);
  EXPECT_EQ(read(file("f.jsonl.gz", test::gzip(half) + test::gzip(rest))).records, want);
  EXPECT_EQ(read(file("f.jsonl.zst", test::zstd(many))).records, want);
  EXPECT_EQ(read(file("f.jsonl.zst", test::zstd(half) + test::zstd(rest)), 100).records, want);
}

TEST_F(RecordsTest, CompressedFilesCutOffOrDamagedAreNamed) {
  std::string many;
  for (int i = 0; i < 2000; ++i) many += "{\"text\": \"line " + std::to_string(i * 7919) + "\"}\n";
  const std::string gz = test::gzip(many);
  const std::string zst = test::zstd(many);
  EXPECT_THAT(refusal("f.jsonl.gz", gz.substr(0, gz.size() - 9)),
              HasSubstr("f.jsonl.gz: expected a whole gzip stream, got its end before byte"));
  EXPECT_THAT(refusal("f.jsonl.zst", zst.substr(0, zst.size() - 9)),
              HasSubstr("f.jsonl.zst: expected a whole zstd stream, got its end"));
  EXPECT_THAT(refusal("f.jsonl.gz", many),
              HasSubstr("expected a whole gzip stream, got incorrect header check"));
  EXPECT_THAT(refusal("f.jsonl.zst", many),
              HasSubstr("expected a whole zstd stream, got Unknown frame descriptor"));
  EXPECT_THAT(refusal("f.jsonl.gz", ""), HasSubstr("expected a whole gzip stream"));
}

TEST_F(RecordsTest, TextFilesAreWholeDocumentsOrLinesOrParagraphs) {
  const std::string content = "\xef\xbb\xbfOne.\r\nTwo.\n\n\nThree.\nFour.\r\n\r\nFive.";
  EXPECT_THAT(text(content), ElementsAre("One.\nTwo.\n\n\nThree.\nFour.\n\nFive."));
  options_.text_documents = TextDocuments::kLine;
  EXPECT_THAT(text(content), ElementsAre("One.", "Two.", "Three.", "Four.", "Five."));
  options_.text_documents = TextDocuments::kParagraph;
  const InputFile input = file("f.txt", content);
  for (int64_t block_bytes = 1; block_bytes < input.bytes + 2; ++block_bytes) {
    EXPECT_THAT(read(input, block_bytes).records,
                ElementsAre("One.\nTwo.", "Three.\nFour.", "Five."))
        << block_bytes;
  }
}

TEST_F(RecordsTest, EmptyTextIsSkippedEverywhereAlike) {
  EXPECT_THAT(lines("{\"text\":\"\"}\n{\"text\":\"a\"}\n{\"text\":\"\"}\n{\"text\":\"\"}\n{"
                    "\"text\":\"b\"}\n{\"text\":\"\"}"),
              ElementsAre("<empty>", "a", "<empty>", "<empty>", "b", "<empty>"));
  EXPECT_THAT(text(""), IsEmpty());
}

TEST_F(RecordsTest, BadLinesAreNamedByFileAndLine) {
  const std::string good = "{\"text\":\"a\"}\n\n";
  EXPECT_EQ(refusal("f.jsonl", good + "{\"id\":\"7\",\"url\":null}\n"),
            "f.jsonl:3: key text: expected a string, got only the keys id, url");
  EXPECT_EQ(refusal("f.jsonl", good + "{}"),
            "f.jsonl:3: key text: expected a string, got an object without keys");
  EXPECT_EQ(refusal("f.jsonl", good + good + "{\"text\":null}\n"),
            "f.jsonl:5: key text: expected a string, got null");
  EXPECT_EQ(refusal("f.jsonl", "{\"text\":12}\n"),
            "f.jsonl:1: key text: expected a string, got a number");
  EXPECT_EQ(refusal("f.jsonl", "{\"text\":[\"a\"]}\n"),
            "f.jsonl:1: key text: expected a string, got an array");
  EXPECT_EQ(refusal("f.jsonl", good + "[1]\n"), "f.jsonl:3: expected a JSON object, got an array");
  for (const char* broken :
       {"{\"text\":\"a\"", "{\"text\":\"a}", "{\"text\" \"a\"}", "{\"text\":\"a\"} x", "plain",
        "{\"text\":\"\\x\"}", "{\"text\":\"a\",\"n\":[1,2}"}) {
    EXPECT_THAT(refusal("f.jsonl", good + broken + "\n" + good),
                HasSubstr("f.jsonl:3: expected a JSON object, got broken JSON: "))
        << broken;
  }
}

TEST_F(RecordsTest, LinesAreCountedOverBlocksAndRangesAndCompression) {
  std::string many;
  for (int i = 0; i < 50; ++i) many += "{\"text\":\"a\"}\n";
  many += "{\"text\":1}\n";
  EXPECT_THAT(refusal("f.jsonl", many, 16), HasSubstr("f.jsonl:51: "));
  EXPECT_THAT(refusal("f.jsonl.gz", test::gzip(many), 16), HasSubstr("f.jsonl.gz:51: "));
  const InputFile input = file("f.jsonl", many);
  try {
    read(input, 16, 300);
    FAIL();
  } catch (const FormatError& error) {
    EXPECT_THAT(error.what(), HasSubstr("f.jsonl:51: "));
  }
}

TEST_F(RecordsTest, BadLinesCanBeSkippedAndAreCounted) {
  options_.on_bad_document = OnBadDocument::kSkip;
  EXPECT_THAT(lines("{\"id\":1}\n{\"text\":null}\n{\"text\":\"a\"}\n{\"text\":3}\nxx\n"),
              ElementsAre("<missing key>", "<null>", "a", "<not text>", "<broken JSON>"));
}

TEST_F(RecordsTest, AnotherColumnAndTheLastOfEqualKeys) {
  options_.text_column = "content";
  EXPECT_THAT(lines("{\"content\":\"a\",\"text\":\"x\",\"content\":\"b\"}\n"), ElementsAre("b"));
  EXPECT_EQ(refusal("f.jsonl", "{\"text\":\"a\"}"),
            "f.jsonl:1: key content: expected a string, got only the keys text");
}

TEST_F(RecordsTest, UnpairedSurrogatesBecomeTheReplacementCharacter) {
  const Listing listing = read(file("f.jsonl",
                                    "{\"text\":\"a\\ud83d\"}\n{\"text\":\"\\ud83d\\udc4d\"}\n{"
                                    "\"text\":\"\\udc4d\\\\ud83d\\ud83d\\ud83d\\udc4d\"}\n"));
  EXPECT_THAT(listing.records, ElementsAre("a\xef\xbf\xbd", "\xf0\x9f\x91\x8d",
                                           "\xef\xbf\xbd\\ud83d\xef\xbf\xbd\xf0\x9f\x91\x8d"));
  EXPECT_EQ(listing.replacements.at("unpaired surrogates"), 3);
}

TEST_F(RecordsTest, InvalidUtf8IsRefusedReplacedOrSkipped) {
  const std::string bytes = "{\"text\":\"ok\"}\n{\"text\":\"x\xc3(\xf5\xc0\x80\"}\n";
  EXPECT_EQ(refusal("f.jsonl", bytes), "f.jsonl:2: byte 10 of the line: expected UTF-8, got 0xc3");
  EXPECT_EQ(refusal("f.txt", "first\nsecond \xc3("),
            "f.txt:2: byte 13 of the text: expected UTF-8, got 0xc3");
  options_.on_invalid_utf8 = OnInvalidUtf8::kSkip;
  EXPECT_THAT(lines(bytes), ElementsAre("ok", "<invalid UTF-8>"));
  EXPECT_THAT(text("\xff"), ElementsAre("<invalid UTF-8>"));
  options_.on_invalid_utf8 = OnInvalidUtf8::kReplace;
  const Listing listing = read(file("f.jsonl", bytes));
  // Four ill-formed parts: C3, F5, C0, 80.
  EXPECT_THAT(listing.records,
              ElementsAre("ok", "x\xef\xbf\xbd(\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd"));
  EXPECT_EQ(listing.replacements.at("invalid UTF-8"), 4);
}

TEST_F(RecordsTest, BinaryTextFilesAreNamed) {
  EXPECT_EQ(refusal("f.txt", std::string("ab\nc\0d", 6)),
            "f.txt:2: byte 4 of the text: expected text, got a zero byte: a binary file?");
  options_.on_bad_document = OnBadDocument::kSkip;
  EXPECT_THAT(text(std::string("ab\0", 3)), ElementsAre("<binary>"));
}

TEST_F(RecordsTest, OversizedRecordsAreNamedOrSkippedWithoutHoldingThem) {
  options_.max_document_bytes = 1000;
  const std::string large = "{\"text\":\"" + std::string(5000000, 'a') + "\"}\n";
  const std::string bytes =
      "{\"text\":\"a\"}\n" + large + "{\"text\":\"b\"}\n" + large + large + "{\"text\":\"c\"}";
  EXPECT_EQ(refusal("f.jsonl", bytes, 500),
            "f.jsonl:2: record: expected at most 1000 bytes, got more");
  EXPECT_THAT(refusal("f.jsonl", bytes),
              HasSubstr("f.jsonl:2: record: expected at most 1000 bytes"));
  options_.on_bad_document = OnBadDocument::kSkip;
  for (const int64_t block_bytes : {100, 999, 100000, 1 << 30}) {
    EXPECT_THAT(read(file("f.jsonl", bytes), block_bytes).records,
                ElementsAre("a", "<oversized>", "b", "<oversized>", "<oversized>", "c"))
        << block_bytes;
  }
  EXPECT_THAT(text(std::string(1001, 'x')), ElementsAre("<oversized>"));
  EXPECT_THAT(text(std::string(1000, 'x')), ElementsAre(std::string(1000, 'x')));
}

// As Python's json.loads(line.decode(errors="replace")), with U+FFFD for the surrogate.
TEST_F(RecordsTest, ALineWithBothKindsOfDamageIsReplaced) {
  options_.on_invalid_utf8 = OnInvalidUtf8::kReplace;
  const std::string rest(1000, 'x');
  EXPECT_THAT(lines("{\"text\":\"\\ud83d \xff " + rest + "\"}\n"), ElementsAre("\xef\xbf\xbd \xef\xbf\xbd " + rest));
}

// A line past 64 MiB is given back before its text is used where it fills a block; here others may stand beside it.
TEST_F(RecordsTest, AVeryLargeLineAndThoseBesideIt) {
  const std::string large(size_t{70} << 20, 'a');
  const std::string line = "{\"text\":\"" + large + "\"}\n";
  for (const std::string& before : {std::string(), std::string("{\"text\":\"b\"}\n")}) {
    const InputFile input = file("f.jsonl", before + line + "{\"text\":\"c\"}\n");
    for (const int64_t block_bytes : {1 << 19, 1 << 30}) {
      const std::vector<std::string> records = read(input, block_bytes).records;
      ASSERT_EQ(records.size(), before.empty() ? 2U : 3U) << block_bytes;
      EXPECT_TRUE(records[records.size() - 2] == large) << block_bytes;
      EXPECT_EQ(records.back(), "c") << block_bytes;
    }
  }
}

TEST_F(RecordsTest, ALineOfMegabytesIsADocument) {
  const std::string large(20000000, 'a');
  EXPECT_THAT(lines("{\"text\":\"b\"}\n{\"text\":\"" + large + "\"}\n{\"text\":\"c\"}\n"),
              ElementsAre("b", large, "c"));
}

}  // namespace
}  // namespace deltatrain::prepare
