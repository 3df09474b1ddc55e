//! What a request asks for, read from its body.
