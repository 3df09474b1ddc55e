//! route, observe, apply: the routing core.
