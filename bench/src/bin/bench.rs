//! Compares truepeer with its peers: see the library.

use std::process::ExitCode;

fn main() -> ExitCode {
    truepeer_bench::main()
}
