//! Asks each worker how it is.
