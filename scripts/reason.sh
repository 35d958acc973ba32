#!/bin/bash
# Prints why a test failed, briefly: a log of test.sh, the test's name (empty: the end of the log), and how many characters there is room for.
# At most 12 lines of 200 characters. Of a long message the end is kept rather than the beginning: the cause is there.
# `reason.sh --check` tries it.
set -euo pipefail

reason() { # log, test, room
  awk -v name="$2" -v room="$3" '
    function take(line) { text = text (text == "" ? "" : "\n") line }
    name == "" { last[NR] = $0; next }
    # Its failure as the harness or cargo prints it, without the tails of the output of its programs.
    $0 == "---- " name " ----" || $0 == "---- " name " stdout ----" { inside = 1; text = ""; next }
    inside && (/^---- .* ----$/ || /^failures:$/ || /^  -- /) { exit }
    # A check of a script: what follows its line.
    index($0, "test " name " ... FAILED") == 1 { after = 1; next }
    after && /^(test |running |failures:|==> )/ { after = 0 }
    /^[ \t]*$/ || /^note: run with/ { next }
    inside || after { take($0) }
    END {
      if (name == "") for (i = NR - 11; i <= NR; i++) if (last[i] ~ /[^ \t]/) take(last[i])
      if (length(text) > room) {
        first = int(room / 3)
        text = substr(text, 1, first) " [...] " substr(text, length(text) - (room - first - 8))
      }
      count = split(text, lines, "\n")
      for (i = 1; i <= count && shown < 12; i++)
        for (rest = lines[i]; rest != "" && shown < 12; rest = substr(rest, 197)) { print "    " substr(rest, 1, 196); shown++ }
    }' "$1"
}

check() {
  local log said
  log=$(mktemp)
  trap "rm -f '$log'" EXIT
  {
    printf 'test one ... FAILED\ntest two ... ok\ntest mine ... FAILED\n\nfailures:\n\n'
    printf -- '---- one ----\nwith net_raw: log line 1\nlog line 2: no answer: EAGAIN\n\n  -- truepeer.log\n     noise\n\n'
    printf -- '---- mine stdout ----\n\nthread main panicked at a.rs:1:\n%s the cause\nnote: run with it\n\n' "$(printf 'x%.0s' {1..5000})"
    printf 'failures:\n    one\n    mine\n\n'
  } >"$log"
  [ "$(reason "$log" one 400)" = $'    with net_raw: log line 1\n    log line 2: no answer: EAGAIN' ] || return 1
  said=$(reason "$log" mine 400)
  case "$said" in *"thread main panicked at a.rs:1:"*"[...]"*"x the cause") ;; *) return 1 ;; esac
  [ ${#said} -lt 440 ] || return 1
  printf 'test a ... FAILED\n  seen:     1\n  expected: 2\ntest b ... ok\n' >"$log"
  [ "$(reason "$log" a 400)" = $'      seen:     1\n      expected: 2' ] || return 1
  printf 'error: one\n\nerror: two\n' >"$log"
  [ "$(reason "$log" "" 400)" = $'    error: one\n    error: two' ]
}

if [ "${1-}" = --check ]; then check || { echo "reason.sh: a failure is not shown as it should be"; exit 1; }
else reason "$@"; fi
