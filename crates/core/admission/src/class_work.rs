//! The work of one class: how far each tenant's work has advanced, in tokens of virtual time.

use std::collections::BTreeMap;

/// Most tenants without waiting requests whose lead is remembered.
pub(crate) const TENANTS_MAX: usize = 4_096;

/// The tenants of one class and their work.
#[derive(Debug, Default)]
pub(crate) struct ClassWork {
    tenants: BTreeMap<u64, Tenant>,
    /// Number of waiting requests.
    waiting: usize,
    /// Number of tenants with waiting requests.
    backlogged: u64,
    /// How far all tenants' work would have advanced if they were served at once.
    served: u64,
    /// How often in a row a higher class went first.
    pub passed: u32,
}

#[derive(Clone, Copy, Debug, Default)]
struct Tenant {
    /// The end of the work that the tenant has requested so far.
    finish: u64,
    /// The start of its last request. A refund lets its next request start earlier, but not before this one.
    last_start: u64,
    waiting: u32,
}

impl ClassWork {
    /// Number of waiting requests.
    pub fn waiting(&self) -> usize {
        self.waiting
    }

    /// Charges a new request to its tenant and returns its start.
    pub fn start(&mut self, tenant: u64, cost: u32) -> u64 {
        let work = self.tenants.entry(tenant).or_default();
        let start = work.finish.max(self.served);
        work.finish = start.saturating_add(cost.into());
        let start = if work.waiting > 0 { start.max(work.last_start) } else { start };
        work.last_start = start;
        start
    }

    pub fn begin_wait(&mut self, tenant: u64) {
        let waiting = &mut self.tenants.entry(tenant).or_default().waiting;
        self.backlogged += u64::from(*waiting == 0);
        *waiting += 1;
        self.waiting += 1;
    }

    pub fn end_wait(&mut self, tenant: u64) {
        self.waiting -= 1;
        if let Some(tenant) = self.tenants.get_mut(&tenant) {
            tenant.waiting -= 1;
            self.backlogged -= u64::from(tenant.waiting == 0);
        }
    }

    /// Accounts for work given to a request with this start. All tenants with requests share the time that it takes,
    /// and no later request starts before it.
    pub fn serve(&mut self, start: u64, cost: u32) {
        self.served = self.served.max(start).saturating_add(u64::from(cost) / (self.backlogged + 1));
        self.forget_if_many();
    }

    pub fn charge(&mut self, tenant: u64, cost: i64) {
        if let Some(tenant) = self.tenants.get_mut(&tenant) {
            tenant.finish = tenant.finish.saturating_add_signed(cost);
        }
    }

    /// Returns the cost of a request that was not served.
    pub fn refund(&mut self, tenant: u64, cost: u32) {
        self.charge(tenant, -i64::from(cost));
        self.forget_if_many();
    }

    /// Drops tenants that have no lead; when too many are left, forgives their leads.
    fn forget_if_many(&mut self) {
        if self.tenants.len() > TENANTS_MAX + self.waiting {
            let served = self.served;
            self.tenants.retain(|_, tenant| tenant.waiting > 0 || tenant.finish > served);
        }
        if self.tenants.len() > TENANTS_MAX + self.waiting {
            self.tenants.retain(|_, tenant| tenant.waiting > 0);
        }
    }

    #[cfg(test)]
    pub fn tenants(&self) -> usize {
        self.tenants.len()
    }
}
