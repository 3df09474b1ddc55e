//! Tries fuzz targets in plain tests, on any machine: with every input that is kept, and with others like them.
//!
//! ```text
//! fuzz/corpus/NAME ──▶ each as it is ──▶ spoiled: cut, doubled, joined, its words exchanged ──▶ target
//!                                                                                                 │ a panic
//!                                                                  fuzz/artifacts/NAME/… ◀─────────┘
//! ```
//!
//! A target is a function of bytes that panics when a promise is broken; it stands beside the code whose promise it is. Here
//! nothing guides the search but the corpus. What is guided by coverage, `fuzz/run`, calls the same functions, and what it
//! finds is kept in the corpus.

mod cutting;
mod dice;
mod mutator;
mod trial;

pub use cutting::cuttings;
pub use dice::Dice;
pub use mutator::Mutator;
pub use trial::{corpus, try_out};
