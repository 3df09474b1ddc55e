//! The `warmroute` command.
fn main() {}
