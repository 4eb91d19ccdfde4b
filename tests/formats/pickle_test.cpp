#include "formats/pickle.h"

#include <gmock/gmock.h>

#include "base/error.h"

namespace deltatrain::formats {
namespace {

using ::testing::HasSubstr;

PickleTree parse(const std::string& bytes) {
  return PickleTree(std::as_bytes(std::span(bytes.data(), bytes.size())), "x.pt");
}

std::string refusal_of(const std::string& bytes) {
  try {
    parse(bytes);
  } catch (const FormatError& error) {
    return error.what();
  }
  return "accepted";
}

std::string op(const char* text, size_t length) { return std::string(text, length); }

TEST(PickleTest, ReadsBackWhatTheWriterWrites) {
  PickleWriter writer;
  writer.begin_dict();
  writer.text("none");
  writer.none();
  writer.text("yes");
  writer.boolean(true);
  writer.text("numbers");
  writer.begin_list();
  for (const int64_t value :
       {int64_t{0}, int64_t{255}, int64_t{256}, int64_t{-1}, int64_t{1} << 40, INT64_MIN}) {
    writer.integer(value);
  }
  writer.number(-0.5);
  writer.end_list();
  writer.text("args");
  writer.begin_namespace();
  writer.text("lr");
  writer.number(2e-4);
  writer.end_namespace();
  writer.text("state");
  writer.begin_ordered_dict();
  writer.text("w");
  const int64_t shape[] = {2, 3};
  writer.tensor("FloatStorage", "0", 6, shape);
  writer.end_dict();
  writer.text("tuple");
  writer.begin_tuple();
  writer.end_tuple();
  writer.end_dict();
  const PickleTree tree = parse(writer.finish());
  const PickleValue& root = tree.root();
  ASSERT_TRUE(root.is(PickleKind::kDict));
  EXPECT_TRUE(root.find("none")->is(PickleKind::kNone));
  EXPECT_TRUE(root.find("yes")->boolean);
  const auto& numbers = root.find("numbers")->items();
  ASSERT_EQ(numbers.size(), 7U);
  EXPECT_EQ(numbers[2].integer, 256);
  EXPECT_EQ(numbers[3].integer, -1);
  EXPECT_EQ(numbers[4].integer, int64_t{1} << 40);
  EXPECT_EQ(numbers[5].integer, INT64_MIN);
  EXPECT_EQ(numbers[6].number, -0.5);
  EXPECT_EQ(root.find("args")->text(), "argparse Namespace");
  EXPECT_EQ(root.find("args")->node->state.find("lr")->number, 2e-4);
  EXPECT_EQ(root.find("state")->find("w")->text(), "torch._utils _rebuild_tensor_v2");
  EXPECT_TRUE(root.find("tuple")->items().empty());
  EXPECT_EQ(root.find("nothing"), nullptr);
}

TEST(PickleTest, ReadsTheOpcodesOfLaterProtocols) {
  // {"a": (1, 2), "b": {3}} with FRAME, MEMOIZE, SHORT_BINUNICODE, and a memo beyond 255.
  std::string bytes =
      op("\x80\x04\x95\x10\0\0\0\0\0\0\0}\x94(\x8c\x01"
         "a\x94K\x01K\x02\x86\x94\x8c\x01"
         "b\x94\x8f\x94(K\x03\x90u.",
         36);
  const PickleTree tree = parse(bytes);
  EXPECT_EQ(tree.root().find("a")->items()[1].integer, 2);
  EXPECT_EQ(tree.root().find("b")->items()[0].integer, 3);
  const PickleTree memo = parse(op("\x80\x02]r\x2c\x01\0\0j\x2c\x01\0\0\x86.", 15));
  EXPECT_EQ(memo.root().items()[0].node, memo.root().items()[1].node);
}

TEST(PickleTest, RefusesFunctionsByName) {
  const auto global = [](const std::string& module, const std::string& name) {
    return refusal_of(
        "\x80\x02"
        "c" +
        module + "\n" + name + "\n)R.");
  };
  EXPECT_EQ(global("posix", "system"),
            "x.pt: byte 2: expected a class or function that only holds data, got posix.system, "
            "which is refused");
  for (const auto& [module, name] : std::vector<std::pair<std::string, std::string>>{
           {"os", "system"},
           {"nt", "system"},
           {"builtins", "eval"},
           {"__builtin__", "exec"},
           {"builtins", "getattr"},
           {"subprocess", "Popen"},
           {"torch", "load"},
           {"torch.hub", "load"},
           {"numpy", "load"},
           {"io", "open"},
           {"torch._utils", "_rebuild_device_tensor_from_numpy"},
           {"megatron/..", "x"},
           {"megatron evil", "x"},
           {"megatronics", "x"},
           {"", ""},
           {"functools", "partial"}}) {
    EXPECT_THAT(global(module, name), HasSubstr("which is refused")) << module << "." << name;
  }
  // The same through STACK_GLOBAL.
  EXPECT_THAT(refusal_of(op("\x80\x04\x8c\x02os\x8c\x06system\x93.", 16)),
              HasSubstr("os.system, which is refused"));
  EXPECT_EQ(global("megatron.core.transformer.enums", "AttnBackend"), "accepted");
}

TEST(PickleTest, RefusesMalformedPickles) {
  for (const char* bad : {"",
                          "\x80",
                          "\x80\x02",
                          "\x80\x02.",
                          "\x80\x02NN.",
                          "\x80\x02(N.",
                          "\x80\x02}K\x01s.",
                          "\x80\x02Na.",
                          "\x80\x02"
                          "e.",
                          "\x80\x02u.",
                          "\x80\x02Nb.",
                          "\x80\x02Q.",
                          "\x80\x02NQ.",
                          "\x80\x02h\x05.",
                          "\x80\x02R.",
                          "\x80\x02NNR.",
                          "\x80\x02"
                          "cos",
                          "\x80\x02\xff.",
                          "\x80\x01N.",
                          "\x80\x06N.",
                          "(lp0\n."}) {
    EXPECT_NE(refusal_of(bad), "accepted") << bad;
  }
  EXPECT_THAT(refusal_of(op("\x80\x02X\xff\xff\xff\x7f"
                            "abc",
                            10)),
              HasSubstr("expected 2147483647 bytes, got 3 to the end of the data"));
  EXPECT_THAT(refusal_of(op("\x80\x02\x8d\xff\xff\xff\xff\xff\xff\xff\xff"
                            "a",
                            12)),
              HasSubstr("expected 18446744073709551615 bytes"));
}

TEST(PickleTest, BoundsWhatItBuilds) {
  EXPECT_THAT(refusal_of("\x80\x02" + std::string(2'000'000, '}')),
              HasSubstr("expected at most 1000000 objects"));
  EXPECT_THAT(refusal_of("\x80\x02" + std::string(20'000'000, '(')),
              HasSubstr("expected at most 8000000 values"));
  EXPECT_THAT(refusal_of("\x80\x02" + std::string(20'000'000, 'N')),
              HasSubstr("expected at most 8000000 values"));
  EXPECT_THAT(refusal_of("\x80\x04"
                         "N" +
                         std::string(20'000'000, '\x94')),
              HasSubstr("expected at most 8000000 values"));
  // A tuple of 100,000 used as the arguments of call after call.
  std::string calls = "\x80\x02(" + std::string(100'000, 'N') +
                      "tq\x01"
                      "0";
  for (int i = 0; i < 1000; ++i) calls += "ctorch\nSize\nh\x01R0";
  EXPECT_THAT(refusal_of(calls + "N."), HasSubstr("expected at most 8000000 values"));
  // A list that holds itself.
  const PickleTree cycle = parse(
      "\x80\x02]q\x01h\x01"
      "a.");
  EXPECT_EQ(cycle.root().items()[0].node, cycle.root().node);
}

}  // namespace
}  // namespace deltatrain::formats
