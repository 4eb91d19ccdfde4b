// src/report/page.html as a text of the program.
#pragma once

namespace deltatrain::report {

extern const char* const kPageTemplate;  // the data go where "<!--data-->" stands

}  // namespace deltatrain::report
