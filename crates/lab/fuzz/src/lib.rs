//! Runs fuzz targets as plain tests: on every corpus input, and on mutations of them.
//!
//! ```text
//! fuzz/corpus/NAME ──▶ each as it is ──▶ mutated: cut, doubled, joined, words exchanged ──▶ target
//!                                                                                                 │ a panic
//!                                                                  fuzz/artifacts/NAME/… ◀─────────┘
//! ```
//!
//! A target is a function of bytes that panics when an invariant is broken; it is defined beside the code it
//! tests. Here the search is not guided. The coverage-guided `fuzz/run` calls the same functions and adds its
//! findings to the corpus.

mod cutting;
mod dice;
mod mutator;
mod trial;

pub use cutting::cuttings;
pub use dice::Dice;
pub use mutator::Mutator;
pub use trial::{corpus, try_out};
