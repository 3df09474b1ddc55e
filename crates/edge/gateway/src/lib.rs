//! HTTP in, HTTP out.
