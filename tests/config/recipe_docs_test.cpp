#include <gtest/gtest.h>

#include <string>

#include "base/files.h"
#include "config/recipe_reader.h"

namespace deltatrain {
namespace {

TEST(RecipeDocsTest, PageHoldsTheTableOfKeys) {
  const std::string page = read_file("docs/recipes.md");
  const size_t start = page.find("### model\n");
  ASSERT_NE(start, std::string::npos);
  EXPECT_EQ(page.substr(start), recipe_keys_markdown())
      << "after a change of the keys, replace the tables by the output of: deltatrain recipe keys "
         "--markdown";
}

}  // namespace
}  // namespace deltatrain
