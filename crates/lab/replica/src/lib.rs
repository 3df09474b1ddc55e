//! The engine model as an HTTP server.
