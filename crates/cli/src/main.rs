//! The program: everything is in the library, so that fuzz targets reach it too.

use std::process::ExitCode;

fn main() -> ExitCode {
    warmroute_cli::run()
}
