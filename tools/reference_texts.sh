#!/bin/sh
# Real text in many scripts for comparisons with the reference tokenizers, out of the distribution's packages:
#
#   tools/reference_texts.sh FOLDER
#
# Writes one .txt file a package (help pages, manual pages, message catalogues, word lists, collation data: about
# 260 MB), english.txt for timing, and sample.txt, 8 MB of all, to train vocabularies on. Packages that the
# distribution lacks are named and left out.
set -eu
folder=$1
mkdir -p "$folder/packages"
packages="
  fortunes-ru fortunes-zh hunspell-ar hunspell-ko hunspell-th iso-codes
  libreoffice-help-dz libreoffice-help-el libreoffice-help-hi libreoffice-help-ja libreoffice-help-km libreoffice-help-ko
  libreoffice-help-ru libreoffice-help-vi libreoffice-help-zh-cn
  libreoffice-l10n-ar libreoffice-l10n-hi libreoffice-l10n-ta libreoffice-l10n-th
  linux-doc-6.1 manpages-de manpages-ja manpages-ru manpages-zh unicode-cldr-core wordnet-base
"
for package in $packages; do
  [ -s "$folder/$package.txt" ] && continue
  [ "$package" = linux-doc-6.1 ] && [ -s "$folder/english.txt" ] && continue
  unpacked=$folder/packages/$package
  if ! (cd "$folder/packages" && ls "$package"_*.deb >/dev/null 2>&1 || apt-get download -q "$package" >&2); then
    echo "reference_texts: no package $package here" >&2
    continue
  fi
  dpkg -x "$folder/packages/$package"_*.deb "$unpacked"
  # Catalogues hold texts end to end with zero bytes between them; pages of manuals are compressed.
  find "$unpacked" -type f \( -name '*.html' -o -name '*.txt' -o -name '*.mo' -o -name '*.dic' -o -name '*.gz' \
    -o -path '*/games/fortunes/*' -o -path '*/wordnet/data.*' -o -path '*cldr*/main/*.xml' \
    -o -path '*cldr*/annotations/*.xml' \) ! -name 'changelog*' ! -name 'CollationTest*' ! -path '*/images/*' |
    LC_ALL=C sort | while read -r file; do
      case "$file" in
        *.gz) gzip -dc "$file" ;;
        *.html) sed -e 's/<[^>]*>/ /g' "$file" ;;
        *) cat "$file" ;;
      esac
    done | tr '\000' '\n' > "$folder/$package.txt.part"
  mv "$folder/$package.txt.part" "$folder/$package.txt"
  rm -rf "$unpacked"
done
cd "$folder"
[ -e english.txt ] || mv linux-doc-6.1.txt english.txt
[ -e sample.txt ] || for file in *.txt; do awk 'length($0) < 3000 && NR % 40 == 0' "$file" | head -c 400000 | sed '$d'; done > sample.txt
du -cb ./*.txt | tail -n 1
