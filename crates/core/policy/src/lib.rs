//! Where a request should go, decided from numbers alone.
