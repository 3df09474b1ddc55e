#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| warmroute_gateway::fuzz::response(input));
