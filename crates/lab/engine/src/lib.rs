//! A small faithful model of an LLM engine, in virtual time.
