//! Somebody who makes trouble by a seed: one thing after another, each for a while, then it is made good.
//!
//! At most two engines at a time fail requests. A request is tried on three workers by default, so with two it must be served whatever
//! happens, and "none was lost" can be asserted; with three it could meet all of them, and that would be nobody's bug.

use std::collections::BTreeMap;
use std::ops::Range;
use std::thread::JoinHandle;
use std::time::Instant;

use crate::dice::Dice;
use crate::footprint::Footprint;
use crate::load::flood;
use crate::outcome::Tally;
use crate::settings::Settings;
use crate::troupe::Troupe;
use crate::world::process::Gateway;

const FAILING_MAX: usize = 2;
const FLOOD: usize = 300;

/// What can be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Deed {
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

const DEEDS: [Deed; 14] = [
    Deed::Kill,
    Deed::Kill,
    Deed::Stop,
    Deed::Hang,
    Deed::Restart,
    Deed::Unavailable,
    Deed::Busy,
    Deed::ResetBefore,
    Deed::ResetWithin,
    Deed::Slow,
    Deed::LoseEvents,
    Deed::Flood,
    Deed::Reload,
    Deed::Handover,
];

impl Deed {
    fn name(self) -> &'static str {
        match self {
            Deed::Kill => "kill -9",
            Deed::Stop => "SIGSTOP",
            Deed::Hang => "hang",
            Deed::Restart => "restart",
            Deed::Unavailable => "503",
            Deed::Busy => "429",
            Deed::ResetBefore => "reset before the head",
            Deed::ResetWithin => "reset within streams",
            Deed::Slow => "slow",
            Deed::LoseEvents => "events lost",
            Deed::Flood => "flood",
            Deed::Reload => "other settings",
            Deed::Handover => "handover",
        }
    }

    /// Whether requests that come to the engine meanwhile may be broken by it.
    fn fails_requests(self) -> bool {
        !matches!(self, Deed::Slow | Deed::LoseEvents | Deed::Flood | Deed::Reload | Deed::Handover)
    }

    /// Probes need some seven seconds to find out that nobody is at home.
    fn lasts_ms(self) -> Range<u64> {
        if matches!(self, Deed::Stop | Deed::Hang) { 500..10_000 } else { 500..5_000 }
    }
}

/// Whether gateways take each other's place.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Gateways {
    /// The same one from the beginning to the end.
    One,
    OneAfterAnother,
}

/// What gateways count, over all that were there. What one counts while it leaves is not in it.
#[derive(Clone, Copy, Default)]
pub struct Counted {
    pub retries: f64,
    /// Settings that were applied, and those that were refused.
    pub reloads: [f64; 2],
}

impl Counted {
    pub fn add(&mut self, gateway: &Gateway) {
        self.retries += gateway.metric("warmroute_retries_total");
        for (sum, outcome) in self.reloads.iter_mut().zip(["applied", "refused"]) {
            *sum += gateway.metric(&format!("warmroute_config_reloads_total{{outcome=\"{outcome}\"}}"));
        }
    }
}

/// How long those who leave are waited for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Patience {
    None,
    UntilTheEnd,
}

/// What is being done to an engine.
struct Suffering {
    victim: usize,
    deed: Deed,
    until: Instant,
}

pub struct Trouble {
    dice: Dice,
    settings: Settings,
    gateways: Gateways,
    next: Instant,
    suffering: Vec<Suffering>,
    done: BTreeMap<&'static str, usize>,
    rushing: Vec<JoinHandle<Tally>>,
    /// What they and the others have counted.
    pub counted: Counted,
    /// What the largest of them held just before it was succeeded.
    pub most_mib: f64,
    /// Gateways that have been succeeded, and still answer what they had begun.
    leaving: Vec<Gateway>,
    /// What became of the floods' requests, when all is over.
    pub floods: Vec<Tally>,
}

impl Trouble {
    pub fn new(dice: Dice, settings: Settings, gateways: Gateways) -> Trouble {
        Trouble {
            dice,
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

    /// Makes good what has lasted long enough, and does the next thing when it is time.
    pub fn go_on(&mut self, troupe: &mut Troupe, gateway: &mut Gateway) {
        let now = Instant::now();
        self.see_off(Patience::None);
        self.make_good_where(troupe, |suffering| suffering.until <= now);
        if self.next <= now {
            self.next = now + self.dice.pause_ms(200..900);
            self.strike(troupe, gateway);
        }
    }

    /// Everything is made good, and whoever was part of a flood has got an answer.
    pub fn make_good(&mut self, troupe: &mut Troupe, gateway: &Gateway) {
        self.make_good_where(troupe, |_| true);
        self.settings.reset();
        gateway.process.signal("-HUP");
        self.see_off(Patience::UntilTheEnd);
        self.floods = self.rushing.drain(..).map(|rushing| rushing.join().unwrap()).collect();
    }

    pub fn count(&self) -> usize {
        self.done.values().sum()
    }

    pub fn list(&self) -> String {
        let times: Vec<String> = self.done.iter().map(|(name, n)| format!("{n} x {name}")).collect();
        times.join(", ")
    }

    fn strike(&mut self, troupe: &mut Troupe, gateway: &mut Gateway) {
        let (deed, victim) = (self.dice.one_of(&DEEDS), self.dice.within(0..troupe.size() as u64) as usize);
        let lasting = self.dice.pause_ms(deed.lasts_ms());
        let failing = self.suffering.iter().filter(|one| one.deed.fails_requests()).count();
        let is_suffering = self.suffering.iter().any(|one| one.victim == victim);
        let stays = deed == Deed::Handover && self.gateways == Gateways::One;
        if stays || is_suffering || (deed.fails_requests() && failing >= FAILING_MAX) {
            return;
        }
        self.act(deed, victim, troupe, gateway);
        *self.done.entry(deed.name()).or_default() += 1;
        if !matches!(deed, Deed::Flood | Deed::Reload | Deed::Handover) {
            self.suffering.push(Suffering { victim, deed, until: Instant::now() + lasting });
        }
    }

    fn act(&mut self, deed: Deed, victim: usize, troupe: &mut Troupe, gateway: &mut Gateway) {
        match deed {
            Deed::Kill => troupe.kill(victim),
            Deed::Stop => troupe.signal(victim, "-STOP"),
            Deed::Hang => troupe.order(victim, r#"{"kind":"hang"}"#),
            Deed::Restart => troupe.order(victim, r#"{"kind":"restart"}"#),
            Deed::Unavailable => troupe.order(victim, r#"{"kind":"status","code":503}"#),
            Deed::Busy => troupe.order(victim, r#"{"kind":"status","code":429,"retry_after_s":1}"#),
            Deed::ResetBefore => troupe.order(victim, r#"{"kind":"reset"}"#),
            Deed::ResetWithin => {
                let tokens = self.dice.within(1..40);
                troupe.order(victim, &format!(r#"{{"kind":"reset","after_tokens":{tokens},"times":10}}"#));
            }
            Deed::Slow => troupe.order(victim, r#"{"kind":"slow","factor":4}"#),
            Deed::LoseEvents => {
                troupe.order(victim, r#"{"kind":"events","loss":0.3,"reorder":0.2,"duplicate":0.2}"#);
            }
            Deed::Flood => self.rushing.push(flood(gateway.url(), FLOOD, &mut self.dice)),
            Deed::Reload => {
                self.settings.change(&mut self.dice);
                gateway.process.signal("-HUP");
            }
            Deed::Handover => {
                self.counted.add(gateway);
                self.most_mib = self.most_mib.max(Footprint::now(gateway).rss_mib);
                self.leaving.push(std::mem::replace(gateway, troupe.successor(&self.settings)));
            }
        }
    }

    /// Those who have left their place and ended, all they had begun being done.
    fn see_off(&mut self, patience: Patience) {
        let is_over =
            |gateway: &mut Gateway| patience == Patience::UntilTheEnd || gateway.process.has_ended();
        for mut gateway in self.leaving.extract_if(.., |gateway| is_over(gateway)) {
            assert!(gateway.process.wait_in_place().success(), "a gateway that was succeeded ended badly");
        }
    }

    fn make_good_where(&mut self, troupe: &mut Troupe, is_over: impl Fn(&Suffering) -> bool) {
        let (over, going_on) = self.suffering.drain(..).partition(is_over);
        self.suffering = going_on;
        let over: Vec<Suffering> = over;
        for Suffering { victim, deed, .. } in over {
            match deed {
                Deed::Kill => troupe.revive(victim),
                Deed::Stop => troupe.signal(victim, "-CONT"),
                _ => troupe.order(victim, r#"{"kind":"none"}"#),
            }
        }
    }
}
