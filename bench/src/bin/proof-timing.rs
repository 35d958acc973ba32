//! The program of `make proof-timing`: see the library's `proof_timing`.

use std::process::ExitCode;

fn main() -> ExitCode {
    truepeer_bench::proof_timing::main()
}
