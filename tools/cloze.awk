# A cloze set of prose, one JSON object a line: the start of a sentence, four endings of which one is its own, and the
# index of that one. The others end the sentences before it in the text.  awk -v most=200 -f tools/cloze.awk FILE ...
BEGIN { kEnding = 5; count = 0 }

function flush_paragraph(   i, n, parts) {
  n = split(paragraph, parts, /[.!?] +|[.!?]$/)
  for (i = 1; i <= n; i++) sentence(parts[i])
  paragraph = ""
}

# Plain sentences only: what has quotes, backslashes or other signs would need escaping.
function sentence(text,   n, words, i, context, ending) {
  gsub(/^ +| +$/, "", text)
  if (text !~ /^[A-Z][A-Za-z0-9 ,()-]*$/) return
  n = split(text, words, / +/)
  if (n < 12 || n > 40) return
  context = words[1]
  for (i = 2; i <= n - kEnding; i++) context = context " " words[i]
  ending = words[n - kEnding + 1]
  for (i = n - kEnding + 2; i <= n; i++) ending = ending " " words[i]
  if (ending in seen) return
  seen[ending] = 1
  contexts[count] = context
  endings[count] = ending
  count++
}

/^[ \t]*$/ || FNR == 1 { flush_paragraph() }
{ paragraph = paragraph " " $0 }

END {
  flush_paragraph()
  for (i = 3; i < count && i < most + 3; i++) {
    label = i % 4
    line = ""
    wrong = 1
    for (c = 0; c < 4; c++) {
      ending = c == label ? endings[i] : endings[i - wrong++]
      line = line (c == 0 ? "" : ", ") "\"" ending ".\""
    }
    printf "{\"context\": \"%s\", \"choices\": [%s], \"label\": %d}\n", contexts[i], line, label
  }
}
