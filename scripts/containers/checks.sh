# Tests in the output format of cargo's, so that test.sh counts them; to be sourced.
checks_passed=0 checks_failed=0 checks_ignored=0

check_is() { # name, seen, expected
  if [ "$2" = "$3" ]; then
    echo "test $1 ... ok"
    checks_passed=$((checks_passed + 1))
  else
    echo "test $1 ... FAILED"
    printf '  seen:     %s\n  expected: %s\n' "$2" "$3"
    checks_failed=$((checks_failed + 1))
  fi
}

check_skip() { # name, reason
  echo "test $1 ... ignored, $2"
  checks_ignored=$((checks_ignored + 1))
}

checks_end() {
  local result=ok
  [ $checks_failed = 0 ] || result=FAILED
  echo "test result: $result. $checks_passed passed; $checks_failed failed; $checks_ignored ignored"
  [ $checks_failed = 0 ]
}

# Ends all of it as skipped if this machine can't have a node.
node_needs() { # name
  local missing=
  [ "$(uname -m)" = x86_64 ] || missing="written for x86_64"
  command -v go >/dev/null || missing="Go is missing"
  [ -x "$engines/root/usr/bin/podman" ] || missing="the engines are not unpacked: make engines"
  [ "$(id -u)" = 0 ] || missing="root is needed"
  [ -z "$missing" ] || { check_skip "$1" "$missing"; checks_end; exit 0; }
}
