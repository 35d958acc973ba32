//! The program of `make demo-https`: see the library's `demo_https`.

use std::process::ExitCode;

fn main() -> ExitCode {
    truepeer_bench::demo_https::main()
}
