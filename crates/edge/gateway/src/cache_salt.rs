//! Whose requests share the engines' caches.

use warmroute_prompt::Api;
use warmroute_types::OptionValue;

/// Whose requests share the engines' caches. The salt is written into the body, where engines honour `cache_salt`, and
/// into the router's own namespace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CacheSalt {
    /// All requests share.
    #[default]
    Off,
    /// Requests of one tenant (the keys with one name).
    Key,
    /// Requests of tenants with the same `cache-group`; a tenant without one is alone.
    Group,
}

impl OptionValue for CacheSalt {
    const VALUES: &'static [(CacheSalt, &'static str, &'static str)] = &[
        (CacheSalt::Off, "off", "All requests share"),
        (CacheSalt::Key, "key", "Only requests of keys with the same name share"),
        (CacheSalt::Group, "group", "Only requests of keys with the same cache-group share"),
    ];
}

/// Whether a tenant's salt is written into requests of this API: some engines read it there, and the others ignore
/// fields that they do not know.
pub(crate) fn takes_salt(api: Api) -> bool {
    api != Api::Other
}
