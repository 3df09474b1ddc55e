//! Where workers come from.
