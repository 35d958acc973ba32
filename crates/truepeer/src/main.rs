//! Calls the library's `main`. The library is separate so that fuzz/ can link it.

use std::process::ExitCode;

fn main() -> ExitCode {
    truepeer::main()
}
