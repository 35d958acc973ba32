//! Calls the library's `main`.

use std::process::ExitCode;

fn main() -> ExitCode {
    truepeer::main()
}
