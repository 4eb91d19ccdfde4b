# Keeps the prose of reStructuredText: paragraphs of full sentences at the left margin, one line each.
BEGIN { RS = ""; ORS = "\n\n" }
{
  if (length($0) < 100 || $0 !~ /^[A-Z]/ || $0 !~ /[.:]$/) next
  if ($0 ~ /(^|\n)[ \t]/ || $0 ~ /[{}|<>\\$=]|::|``|__|\n[-=~^*#][-=~^*#][-=~^*#]/) next
  letters = $0
  gsub(/[^A-Za-z ,.\n]/, "", letters)
  if (length(letters) < 0.92 * length($0)) next
  gsub(/\n/, " ")
  gsub(/\*+|`/, "")
  print
}
