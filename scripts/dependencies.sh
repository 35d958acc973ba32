#!/bin/bash
# Compares docs/decisions/dependencies.md with the crates of others that are linked into truepeer and its library: each that truepeer
# names itself, and each with unsafe code, needs a row there with its count of `unsafe` and a reason; and with the beginning of
# its version, if two of its name are linked.
#
#     scripts/dependencies.sh            # fails if a row is missing, differs or is too much
#     scripts/dependencies.sh --write    # corrects counts, and adds rows whose reason is to be written
#
# Counted is the keyword in a crate's sources of that version, without comments, strings, tests/, benches/ and examples/. Code for other
# systems and features counts too.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
page=docs/decisions/dependencies.md
sources=${CARGO_HOME:-$HOME/.cargo}/registry/src

# As the packages are built (scripts/package.sh). Procedural macros and build scripts run on the building machine only.
tree() {
  local triple
  for triple in x86_64-unknown-linux-gnu aarch64-unknown-linux-gnu x86_64-unknown-linux-musl; do
    cargo tree --locked -p truepeer -p truepeer-preload -e normal,no-proc-macro --target "$triple" --prefix depth --no-dedupe -f ' {p}'
  done
}

# "name version direct|indirect count", sorted.
linked() {
  # cargo prints an empty line between two trees. gawk adds a field to a line when it is assigned to.
  tree | awk 'NF { depth = $1; name[depth] = $2; sub(/^v/, "", $3)
      if ($2 ~ /^truepeer/) next
      kind = (name[depth - 1] ~ /^truepeer/) ? "direct" : "indirect"
      if (kind == "direct" || !(($2 " " $3) in kinds)) kinds[$2 " " $3] = kind }
    END { for (crate in kinds) print crate, kinds[crate] }' | sort |
  while read -r name version kind; do
    # One crate may lie there from two registries; the same version has the same content.
    directory=$(find "$sources" -mindepth 2 -maxdepth 2 -type d -name "$name-$version" | head -1)
    [ -n "$directory" ] || { echo "dependencies: the source of $name $version is not in $sources" >&2; exit 1; }
    count=$(find "$directory" \( -path "$directory/tests" -o -path "$directory/benches" -o -path "$directory/examples" \) -prune \
      -o -type f -name '*.rs' -print0 | xargs -0 perl -0777 -ne '
        s{//[^\n]*|/\*.*?\*/|\br(\#*)".*?"\1|"(?:[^"\\]|\\.)*"|\x27(?:[^\x27\\\n]|\\.[^\x27]*)\x27}{ }gs;
        $count++ while /\bunsafe\b/g;
        END { print $count + 0 }')
    echo "$name $version $kind $count"
  done
}

# The crates of the page: rows of three cells, the first a crate's name.
write=
[ "${1-}" != --write ] || write=$page.new
cargo fetch -q --locked --target x86_64-unknown-linux-gnu
linked | perl -e '
  my ($page, $write) = @ARGV;
  my (%linked, %row, @out, $failed, $total, $with);
  sub complain { $failed = 1; print "dependencies: @_\n" unless $write }
  # 0.3.18 and 0.4.6 are two crates, 1.2.4 and 1.2.5 are one.
  sub series { shift =~ /^(0\.\d+|[1-9]\d*)/; $1 }
  while (<STDIN>) {
    my ($name, $version, $kind, $count) = split;
    $total++; $with++ if $count;
    $linked{$name}{series($version)} = { name => $name, version => $version, kind => $kind, count => $count }
      if $count || $kind eq "direct";
  }
  my @crates;
  for my $versions (values %linked) {
    for my $series (keys %$versions) {
      my $crate = $versions->{$series};
      $crate->{cell} = "`$crate->{name}`" . (keys %$versions > 1 ? " $series" : "");
      push @crates, $crate;
    }
  }
  my %named = map { $_->{cell} => $_ } @crates;
  die "dependencies: only $total crates are linked: cargo tree is read wrongly\n" if $total < 50;
  open my $in, "<", $page or die "$page: $!\n";
  while (my $line = <$in>) {
    if (my ($cell, $count, $why) = $line =~ /^\| (`[\w-]+`(?: [\d.]+)?) \| (\d+) \| (.*) \|$/) {
      my $crate = $named{$cell};
      if (!$crate) { complain("$cell has a row, and is not linked so (or has no unsafe code any more)"); next }
      $crate->{seen} = 1;
      complain("$cell: the page says $count unsafe; linked is $crate->{version} with $crate->{count}")
        if $count != $crate->{count};
      complain("$cell: the reason is missing") if $why !~ /\w{3}/;
      $line = "| $cell | $crate->{count} | $why |\n";
    }
    push @out, $line;
  }
  for my $crate (sort { $a->{cell} cmp $b->{cell} } @crates) {
    next if $crate->{seen};
    complain("$crate->{name} $crate->{version} ($crate->{kind}, $crate->{count} unsafe) is linked, and has no row in $page");
    push @out, "| $crate->{cell} | $crate->{count} | ? |\n";
  }
  if ($write) { open my $out, ">", $write or die "$write: $!\n"; print $out @out; close $out; exit 0 }
  print "dependencies: $total crates are linked, $with of them with unsafe code, ", scalar(@crates), " rows\n" unless $failed;
  print "dependencies: scripts/dependencies.sh --write corrects the rows; read what has changed\n" if $failed;
  exit($failed ? 1 : 0);
' "$page" "$write"
if [ -n "$write" ]; then mv "$write" "$page"; fi
