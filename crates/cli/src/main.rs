//! The program. The code is in the library, so that fuzz targets can use it.

use std::process::ExitCode;

fn main() -> ExitCode {
    warmroute_cli::run()
}
