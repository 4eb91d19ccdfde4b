#include "formats/torch_file.h"

#include <gmock/gmock.h>

#include <cstring>
#include <fstream>
#include <numeric>

#include "base/error.h"
#include "formats/element_cast.h"
#include "support/test_files.h"

namespace deltatrain::formats {
namespace {

using test::TemporaryFolder;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<double> values(const TorchFile& file, const PickleValue& value,
                           const std::string& name) {
  const TorchTensor tensor = file.tensor(value, name);
  const int64_t count = tensor.shape.num_elements();
  std::vector<std::byte> bytes(static_cast<size_t>(count * dtype_bytes(tensor.dtype)));
  // In two pieces, to begin in the middle of a row.
  const int64_t first = count / 3;
  file.read(tensor, 0, first, bytes.data());
  file.read(tensor, first, count - first, bytes.data() + first * dtype_bytes(tensor.dtype));
  std::vector<double> result(static_cast<size_t>(count));
  cast_elements(tensor.dtype, bytes.data(), DType::kF64, result.data(), count);
  return result;
}

// What make_torch_files.py saves, read from either container.
class TorchFileTest : public ::testing::TestWithParam<const char*> {
 protected:
  TorchFile file_{test::golden_path("torch") / GetParam()};
};

TEST_P(TorchFileTest, ReadsTensorsOfEveryKind) {
  const PickleValue& model = *file_.root().find("model");
  const auto read = [&](const char* name) { return values(file_, *model.find(name), name); };
  const auto shape = [&](const char* name) { return file_.tensor(*model.find(name), name).shape; };
  EXPECT_THAT(read("plain"), ElementsAre(0, 0.25, 0.5, 0.75, 1, 1.25));
  EXPECT_EQ(shape("plain"), (Shape{2, 3}));
  EXPECT_THAT(read("bf16"), ElementsAre(1, -2.5, 3.140625));
  EXPECT_EQ(file_.tensor(*model.find("bf16"), "").dtype, DType::kBF16);
  EXPECT_THAT(read("half"), ElementsAre(0.5, 65504));
  EXPECT_THAT(read("double"), ElementsAre(0.1));
  EXPECT_EQ(shape("transposed"), (Shape{6, 4}));
  EXPECT_THAT(read("transposed"), ElementsAre(0, 6, 12, 18, 1, 7, 13, 19, 2, 8, 14, 20, 3, 9, 15,
                                              21, 4, 10, 16, 22, 5, 11, 17, 23));
  EXPECT_THAT(read("part"), ElementsAre(8, 9, 10, 14, 15, 16));
  EXPECT_EQ(read("shared")[23], 23);
  EXPECT_EQ(file_.tensor(*model.find("shared"), "").key, file_.tensor(*model.find("part"), "").key);
  EXPECT_THAT(read("expanded"), ElementsAre(7, 7, 7, 7, 7, 7));
  EXPECT_EQ(shape("scalar").rank(), 0);
  EXPECT_THAT(read("scalar"), ElementsAre(1.5));
  EXPECT_EQ(shape("empty"), (Shape{0, 4}));
  EXPECT_THAT(read("parameter"), ElementsAre(9, 8));
  EXPECT_TRUE(model.find("layers.0._extra_state")->is(PickleKind::kNone));
  EXPECT_EQ(model.find("layers.1._extra_state")->text(), "_io BytesIO");
  EXPECT_TRUE(TorchFile::is_tensor(*model.find("layers.2._extra_state")));
  EXPECT_FALSE(TorchFile::is_tensor(model));
}

TEST_P(TorchFileTest, ReadsTheRestOfTheTree) {
  const PickleValue& root = file_.root();
  EXPECT_EQ(root.find("iteration")->integer, 4768);
  EXPECT_EQ(root.find("checkpoint_version")->number, 3.0);
  const PickleValue& args = root.find("args")->node->state;
  EXPECT_EQ(args.find("num_layers")->integer, 24);
  EXPECT_EQ(args.find("lr")->number, 2e-4);
  EXPECT_TRUE(args.find("big")->is(PickleKind::kBytes));
  EXPECT_EQ(args.find("negative")->integer, -5);
  EXPECT_TRUE(args.find("swiglu")->boolean);
  EXPECT_TRUE(args.find("params_dtype")->is_global("torch bfloat16"));
  EXPECT_EQ(args.find("attention_backend")->text(), "megatron.core.transformer.enums AttnBackend");
  EXPECT_EQ(args.find("attention_backend")->items()[0].integer, 5);
  EXPECT_EQ(args.find("nested")->find("a")->find("b")->integer, 1);
  const PickleValue& rng = root.find("rng_state")->items()[0];
  EXPECT_EQ(rng.find("random_rng_state")->items()[1].items().size(), 625U);
  const TorchTensor state = file_.tensor(*rng.find("torch_rng_state"), "torch_rng_state");
  EXPECT_EQ(state.dtype, DType::kU8);
  EXPECT_EQ(state.shape, (Shape{5056}));
  const TorchTensor ids = file_.tensor(*root.find("ids"), "ids");
  int64_t numbers[2];
  file_.read(ids, 0, 2, numbers);
  EXPECT_THAT(numbers, ElementsAre(-1, int64_t{1} << 40));
}

INSTANTIATE_TEST_SUITE_P(Containers, TorchFileTest, ::testing::Values("current.pt", "legacy.pt"),
                         [](const auto& tested) { return std::string(tested.param).substr(0, 6); });

std::string refusal_of(const std::filesystem::path& path) {
  try {
    const TorchFile file(path);
    const PickleValue* model = file.root().find("model");
    if (model == nullptr) return "no model";
    for (size_t i = 0; i + 1 < model->items().size(); i += 2) {
      if (!TorchFile::is_tensor(model->items()[i + 1])) continue;
      values(file, model->items()[i + 1], model->items()[i].text());
    }
  } catch (const FormatError& error) {
    return error.what();
  }
  return "accepted";
}

TEST(TorchFileRefusalTest, FunctionsAreRefusedByNameAndNotCalled) {
  const auto folder = test::golden_path("torch");
  EXPECT_THAT(refusal_of(folder / "hostile_system.pt"),
              HasSubstr("posix.system, which is refused"));
  EXPECT_THAT(refusal_of(folder / "hostile_eval.pt"), HasSubstr("eval, which is refused"));
  EXPECT_THAT(refusal_of(folder / "hostile_getattr.pt"), HasSubstr("getattr, which is refused"));
  EXPECT_THAT(refusal_of(folder / "hostile_open.pt"), HasSubstr("io.open, which is refused"));
  EXPECT_FALSE(std::filesystem::exists("deltatrain-was-here"));
}

TEST(TorchFileRefusalTest, EveryTruncationIsRefused) {
  const TemporaryFolder folder;
  for (const char* name : {"current.pt", "legacy.pt"}) {
    const std::string good = read_file(test::golden_path("torch") / name);
    for (size_t length = 0; length < good.size(); length += 1 + length / 20) {
      std::ofstream(folder / "x.pt", std::ios::binary | std::ios::trunc) << good.substr(0, length);
      ASSERT_NE(refusal_of(folder / "x.pt"), "accepted") << name << " " << length;
    }
  }
  std::ofstream(folder / "x.pt") << "text";
  EXPECT_THAT(refusal_of(folder / "x.pt"),
              HasSubstr("expected a file of torch.save, got something else"));
}

// A file of one f32 tensor in a storage of six elements, described by `rebuild`.
std::string refusal_of_view(int64_t count, int64_t offset, const std::vector<int64_t>& sizes,
                            const std::vector<int64_t>& strides,
                            const char* storage_class = "FloatStorage") {
  const TemporaryFolder folder;
  PickleWriter writer;
  writer.begin_dict();
  writer.text("model");
  writer.begin_dict();
  writer.text("w");
  writer.global("torch._utils", "_rebuild_tensor_v2");
  writer.begin_tuple();
  writer.begin_tuple();
  writer.text("storage");
  writer.global("torch", storage_class);
  writer.text("0");
  writer.text("cpu");
  writer.integer(count);
  writer.end_tuple();
  writer.persistent();
  writer.integer(offset);
  for (const auto* list : {&sizes, &strides}) {
    writer.begin_tuple();
    for (const int64_t value : *list) writer.integer(value);
    writer.end_tuple();
  }
  writer.boolean(false);
  writer.none();
  writer.end_tuple();
  writer.call();
  writer.end_dict();
  writer.end_dict();
  ZipWriter zip(folder / "x.pt");
  zip.add_member("x/data.pkl", writer.finish());
  zip.add_member("x/data/0", std::string(24, '\0'));
  zip.commit();
  const std::string message = refusal_of(folder / "x.pt");
  const std::string where = (folder / "x.pt").string() + ": ";
  return message.rfind(where, 0) == 0 ? message.substr(where.size()) : message;
}

TEST(TorchFileRefusalTest, ViewsMustLieWithinTheirStorage) {
  EXPECT_EQ(refusal_of_view(6, 0, {2, 3}, {3, 1}), "accepted");
  EXPECT_EQ(refusal_of_view(6, 1, {5}, {1}), "accepted");
  EXPECT_EQ(refusal_of_view(6, 6, {0}, {1}), "accepted");
  const std::string outside =
      "w: expected a view within 6 elements, got one past its storage's end";
  EXPECT_EQ(refusal_of_view(6, 1, {6}, {1}), outside);
  EXPECT_EQ(refusal_of_view(6, -1, {1}, {1}), outside);
  EXPECT_EQ(refusal_of_view(6, 7, {0}, {1}), outside);
  EXPECT_EQ(refusal_of_view(6, 0, {2, 3}, {4, 1}), outside);
  EXPECT_EQ(refusal_of_view(6, 0, {int64_t{1} << 62}, {1}), outside);
  EXPECT_EQ(refusal_of_view(6, 0, {2, 2}, {int64_t{1} << 62, int64_t{1} << 62}), outside);
  EXPECT_EQ(refusal_of_view(6, INT64_MAX, {2}, {1}), outside);
  EXPECT_EQ(refusal_of_view(6, 0, {int64_t{1} << 40, int64_t{1} << 40}, {0, 0}), outside);
  EXPECT_EQ(refusal_of_view(6, 0, {-1}, {1}), "w: expected sizes of 0 or more, got -1");
  EXPECT_EQ(refusal_of_view(6, 5, {2}, {-1}), "w: expected strides of 0 or more, got -1");
  EXPECT_EQ(refusal_of_view(7, 0, {6}, {1}),
            "w: expected a storage of 7 elements of f32, got 24 bytes");
  EXPECT_EQ(refusal_of_view(int64_t{1} << 62, 0, {6}, {1}),
            "w: expected a storage of 4611686018427387904 elements of f32, got 24 bytes");
  EXPECT_EQ(refusal_of_view(6, 0, {6}, {1}, "ComplexFloatStorage"),
            "w: expected a dtype that is supported, got torch ComplexFloatStorage");
  EXPECT_EQ(refusal_of_view(6, 0, {1, 1, 1, 1, 1, 1}, {1, 1, 1, 1, 1, 1}),
            "w: expected at most 5 axes, got 6");
  EXPECT_EQ(refusal_of_view(6, 0, {6}, {1, 1}), "w: expected as many sizes as strides, got others");
}

TEST(TorchFileWriterTest, ReadsBackWhatItWrites) {
  const TemporaryFolder folder;
  TorchFileWriter writer(folder / "model_optim_rng.pt");
  PickleWriter pickle;
  pickle.begin_dict();
  pickle.text("model");
  pickle.begin_dict();
  pickle.text("a");
  writer.announce(DType::kBF16, {2, 2}, pickle);
  pickle.text("b");
  writer.announce(DType::kF32, {}, pickle);
  pickle.end_dict();
  pickle.end_dict();
  writer.write_tree(pickle.finish());
  const BFloat16 a[4] = {BFloat16(1.0F), BFloat16(2.0F), BFloat16(3.0F), BFloat16(4.0F)};
  writer.begin_tensor();
  writer.write(a, 4);
  writer.write(a + 2, 4);
  const float b = 0.75F;
  writer.begin_tensor();
  writer.write(&b, 4);
  writer.commit();
  const TorchFile file(folder / "model_optim_rng.pt");
  const PickleValue& model = *file.root().find("model");
  EXPECT_THAT(values(file, *model.find("a"), "a"), ElementsAre(1, 2, 3, 4));
  EXPECT_THAT(values(file, *model.find("b"), "b"), ElementsAre(0.75));
}

// Tensors that have a storage of their own, whatever their order and size; a CRC-32 is checked
// behind the bytes of its own tensor.
TEST(TorchFileStreamTest, PassesOnWhatReadGives) {
  const TemporaryFolder folder;
  const std::filesystem::path path = folder / "large.pt";
  const int64_t count = 1500001;
  std::vector<float> large(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) large[static_cast<size_t>(i)] = static_cast<float>(i);
  const BFloat16 small[3] = {BFloat16(1.0F), BFloat16(2.0F), BFloat16(3.0F)};
  {
    TorchFileWriter writer(path);
    PickleWriter pickle;
    pickle.begin_dict();
    pickle.text("small");
    writer.announce(DType::kBF16, {3}, pickle);
    pickle.text("large");
    writer.announce(DType::kF32, {count}, pickle);
    pickle.end_dict();
    writer.write_tree(pickle.finish());
    writer.begin_tensor();
    writer.write(small, sizeof small);
    writer.begin_tensor();
    writer.write(large.data(), 4 * count);
    writer.commit();
  }
  const auto stream = [&path] {
    const TorchFile file(path);
    std::vector<TorchTensor> tensors;
    for (const char* name : {"large", "small"})
      tensors.push_back(file.tensor(*file.root().find(name), name));
    std::vector<std::string> got(2);
    file.stream(tensors, [&got](size_t i, int64_t begin, std::span<const std::byte> piece) {
      EXPECT_EQ(static_cast<size_t>(begin), got[i].size());
      got[i].append(reinterpret_cast<const char*>(piece.data()), piece.size());
    });
    return got;
  };
  const std::vector<std::string> got = stream();
  EXPECT_EQ(got[1], std::string(reinterpret_cast<const char*>(small), sizeof small));
  ASSERT_EQ(got[0].size(), static_cast<size_t>(4 * count));
  EXPECT_EQ(std::memcmp(got[0].data(), large.data(), got[0].size()), 0);

  std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
  file.seekp(3000000).put('?');
  file.close();
  EXPECT_THAT([&] { stream(); },
              ::testing::ThrowsMessage<FormatError>(HasSubstr("large/data/1: CRC-32: expected ")));
}

TEST(TorchFileStreamTest, TakesOnlyTensorsThatAreTheirStorage) {
  const TorchFile file(test::golden_path("torch") / "current.pt");
  const PickleValue& model = *file.root().find("model");
  const auto can = [&](const char* name) {
    return file.can_stream(file.tensor(*model.find(name), name));
  };
  EXPECT_TRUE(can("plain"));
  EXPECT_TRUE(can("parameter"));
  for (const char* name : {"transposed", "part", "expanded"}) EXPECT_FALSE(can(name)) << name;
}

}  // namespace
}  // namespace deltatrain::formats
