//! truepeer.toml, of any text.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| truepeer_cli::fuzzing::any_file(text));
