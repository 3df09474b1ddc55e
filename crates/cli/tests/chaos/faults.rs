//! Injects faults by a seed, one after another, each for a while.
//!
//! At most two engines fail requests at a time. A request is tried on three workers by default, so it must succeed
//! whatever happens, and the test can assert that none is lost. With three failing engines a request could meet all
//! of them.

use std::collections::BTreeMap;
use std::ops::Range;
use std::thread::JoinHandle;
use std::time::Instant;

use crate::engines::Engines;
use crate::footprint::Footprint;
use crate::harness::process::Gateway;
use crate::load::flood;
use crate::outcome::Tally;
use crate::random::Random;
use crate::settings::Settings;

const FAILING_MAX: usize = 2;
const FLOOD: usize = 300;

/// The kinds of faults.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FaultKind {
    Kill,
    Stop,
    Hang,
    Restart,
    Unavailable,
    Busy,
    ResetBefore,
    ResetWithin,
    Slow,
    LoseEvents,
    Flood,
    Reload,
    Handover,
}

const DEEDS: [FaultKind; 14] = [
    FaultKind::Kill,
    FaultKind::Kill,
    FaultKind::Stop,
    FaultKind::Hang,
    FaultKind::Restart,
    FaultKind::Unavailable,
    FaultKind::Busy,
    FaultKind::ResetBefore,
    FaultKind::ResetWithin,
    FaultKind::Slow,
    FaultKind::LoseEvents,
    FaultKind::Flood,
    FaultKind::Reload,
    FaultKind::Handover,
];

impl FaultKind {
    fn name(self) -> &'static str {
        match self {
            FaultKind::Kill => "kill -9",
            FaultKind::Stop => "SIGSTOP",
            FaultKind::Hang => "hang",
            FaultKind::Restart => "restart",
            FaultKind::Unavailable => "503",
            FaultKind::Busy => "429",
            FaultKind::ResetBefore => "reset before the head",
            FaultKind::ResetWithin => "reset within streams",
            FaultKind::Slow => "slow",
            FaultKind::LoseEvents => "events lost",
            FaultKind::Flood => "flood",
            FaultKind::Reload => "other settings",
            FaultKind::Handover => "handover",
        }
    }

    /// Whether the fault may break requests at the engine.
    fn fails_requests(self) -> bool {
        !matches!(
            self,
            FaultKind::Slow
                | FaultKind::LoseEvents
                | FaultKind::Flood
                | FaultKind::Reload
                | FaultKind::Handover
        )
    }

    /// Probes need some seven seconds to notice a dead engine.
    fn lasts_ms(self) -> Range<u64> {
        if matches!(self, FaultKind::Stop | FaultKind::Hang) { 500..10_000 } else { 500..5_000 }
    }
}

/// Whether gateways hand over during the run.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Gateways {
    /// One gateway for the whole run.
    One,
    OneAfterAnother,
}

/// The sum of all gateways' counters, without what a gateway counts while it drains.
#[derive(Clone, Copy, Default)]
pub struct Counted {
    pub retries: f64,
    pub retries_denied: f64,
    /// Configurations applied and refused.
    pub reloads: [f64; 2],
}

impl Counted {
    pub fn add(&mut self, gateway: &Gateway) {
        self.retries += gateway.metric("warmroute_retries_total");
        self.retries_denied += gateway.metric("warmroute_retries_denied_total");
        for (sum, outcome) in self.reloads.iter_mut().zip(["applied", "refused"]) {
            *sum += gateway.metric(&format!("warmroute_config_reloads_total{{outcome=\"{outcome}\"}}"));
        }
    }
}

/// How long draining gateways are waited for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Wait {
    No,
    UntilDrained,
}

/// A fault in progress at an engine.
struct ActiveFault {
    victim: usize,
    kind: FaultKind,
    until: Instant,
}

pub struct FaultInjector {
    random: Random,
    settings: Settings,
    gateways: Gateways,
    next: Instant,
    suffering: Vec<ActiveFault>,
    done: BTreeMap<&'static str, usize>,
    rushing: Vec<JoinHandle<Tally>>,
    /// The counters of all gateways so far.
    pub counted: Counted,
    /// The largest footprint of a gateway just before its handover.
    pub most_mib: f64,
    /// Gateways that have handed over and still drain.
    leaving: Vec<Gateway>,
    /// The outcomes of the floods' requests, known at the end.
    pub floods: Vec<Tally>,
}

impl FaultInjector {
    pub fn new(random: Random, settings: Settings, gateways: Gateways) -> FaultInjector {
        FaultInjector {
            random,
            settings,
            gateways,
            next: Instant::now(),
            suffering: Vec::new(),
            done: BTreeMap::new(),
            rushing: Vec::new(),
            counted: Counted::default(),
            most_mib: 0.0,
            leaving: Vec::new(),
            floods: Vec::new(),
        }
    }

    /// Ends faults that have lasted long enough, and starts the next one when it is due.
    pub fn step(&mut self, engines: &mut Engines, gateway: &mut Gateway) {
        let now = Instant::now();
        self.collect_drained(Wait::No);
        self.end_faults(engines, |suffering| suffering.until <= now);
        if self.next <= now {
            self.next = now + self.random.pause_ms(200..900);
            self.start_fault(engines, gateway);
        }
    }

    /// Ends all faults, and waits for the floods' answers.
    pub fn end_all(&mut self, engines: &mut Engines, gateway: &Gateway) {
        self.end_faults(engines, |_| true);
        self.settings.reset();
        gateway.process.signal("-HUP");
        self.collect_drained(Wait::UntilDrained);
        self.floods = self.rushing.drain(..).map(|rushing| rushing.join().unwrap()).collect();
    }

    /// What the gateways wrote about a request.
    pub fn log_of(&self, request: &str) -> String {
        self.settings.log_of(request)
    }

    pub fn count(&self) -> usize {
        self.done.values().sum()
    }

    pub fn list(&self) -> String {
        let times: Vec<String> = self.done.iter().map(|(name, n)| format!("{n} x {name}")).collect();
        times.join(", ")
    }

    fn start_fault(&mut self, engines: &mut Engines, gateway: &mut Gateway) {
        let (kind, victim) =
            (self.random.one_of(&DEEDS), self.random.within(0..engines.size() as u64) as usize);
        let lasting = self.random.pause_ms(kind.lasts_ms());
        let failing = self.suffering.iter().filter(|one| one.kind.fails_requests()).count();
        let is_suffering = self.suffering.iter().any(|one| one.victim == victim);
        let stays = kind == FaultKind::Handover && self.gateways == Gateways::One;
        if stays || is_suffering || (kind.fails_requests() && failing >= FAILING_MAX) {
            return;
        }
        self.act(kind, victim, engines, gateway);
        *self.done.entry(kind.name()).or_default() += 1;
        if !matches!(kind, FaultKind::Flood | FaultKind::Reload | FaultKind::Handover) {
            self.suffering.push(ActiveFault { victim, kind, until: Instant::now() + lasting });
        }
    }

    fn act(&mut self, kind: FaultKind, victim: usize, engines: &mut Engines, gateway: &mut Gateway) {
        match kind {
            FaultKind::Kill => engines.kill(victim),
            FaultKind::Stop => engines.signal(victim, "-STOP"),
            FaultKind::Hang => engines.order(victim, r#"{"kind":"hang"}"#),
            FaultKind::Restart => engines.order(victim, r#"{"kind":"restart"}"#),
            FaultKind::Unavailable => engines.order(victim, r#"{"kind":"status","code":503}"#),
            FaultKind::Busy => engines.order(victim, r#"{"kind":"status","code":429,"retry_after_s":1}"#),
            FaultKind::ResetBefore => engines.order(victim, r#"{"kind":"reset"}"#),
            FaultKind::ResetWithin => {
                let tokens = self.random.within(1..40);
                engines.order(victim, &format!(r#"{{"kind":"reset","after_tokens":{tokens},"times":10}}"#));
            }
            FaultKind::Slow => engines.order(victim, r#"{"kind":"slow","factor":4}"#),
            FaultKind::LoseEvents => {
                engines.order(victim, r#"{"kind":"events","loss":0.3,"reorder":0.2,"duplicate":0.2}"#);
            }
            FaultKind::Flood => self.rushing.push(flood(gateway.url(), FLOOD, &mut self.random)),
            FaultKind::Reload => {
                self.settings.change(&mut self.random);
                gateway.process.signal("-HUP");
            }
            FaultKind::Handover => {
                self.counted.add(gateway);
                self.most_mib = self.most_mib.max(Footprint::now(gateway).rss_mib);
                self.leaving.push(std::mem::replace(gateway, engines.successor(&self.settings)));
            }
        }
    }

    /// Collects gateways that have drained and exited.
    fn collect_drained(&mut self, wait: Wait) {
        let is_over = |gateway: &mut Gateway| wait == Wait::UntilDrained || gateway.process.has_ended();
        for mut gateway in self.leaving.extract_if(.., |gateway| is_over(gateway)) {
            assert!(gateway.process.wait_in_place().success(), "a gateway that was succeeded ended badly");
        }
    }

    fn end_faults(&mut self, engines: &mut Engines, is_over: impl Fn(&ActiveFault) -> bool) {
        let (over, going_on) = self.suffering.drain(..).partition(is_over);
        self.suffering = going_on;
        let over: Vec<ActiveFault> = over;
        for ActiveFault { victim, kind, .. } in over {
            match kind {
                FaultKind::Kill => engines.revive(victim),
                FaultKind::Stop => engines.signal(victim, "-CONT"),
                _ => engines.order(victim, r#"{"kind":"none"}"#),
            }
        }
    }
}
