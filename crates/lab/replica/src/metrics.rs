//! `GET /metrics`: the figures under vLLM's names, in the Prometheus text format.
//!
//! Names, labels, types and buckets are those of vLLM 0.32.0. Left out are its `_created` series, what it tells about
//! its Python process, and features the model does not have.

use std::fmt::{Display, Write};

use warmroute_engine::PrefixCaching;

use crate::adapter_memory::AdapterMemory;
use crate::config::Config;
use crate::meter::{Board, Histogram, Meter};

/// The whole page.
pub(crate) fn render(config: &Config, boards: &[Board]) -> String {
    let mut page = Page { text: String::with_capacity(16 << 10), model: escape(&config.model), boards };
    page.gauges();
    page.cache_counters();
    page.token_counters();
    page.request_success();
    page.histograms();
    page.cache_config(config);
    page.text
}

/// The adapters in memory, as vLLM tells those of its running requests.
pub(crate) fn adapters(memory: &AdapterMemory, now_s: u64) -> String {
    let (names, slots) = memory.names();
    let names = names.iter().map(|name| escape(name)).collect::<Vec<_>>().join(",");
    let labels = format!("max_lora=\"{slots}\",running_lora_adapters=\"{names}\",waiting_lora_adapters=\"\"");
    format!("# TYPE vllm:lora_requests_info gauge\nvllm:lora_requests_info{{{labels}}} {now_s}.0\n")
}

struct Page<'a> {
    text: String,
    model: String,
    boards: &'a [Board],
}

impl Page<'_> {
    fn gauges(&mut self) {
        self.family("num_requests_running", "gauge", "Number of requests in model execution batches.");
        self.each("num_requests_running", "", |board| f64::from(board.stats.running));
        self.family("num_requests_waiting", "gauge", "Number of requests waiting to be processed.");
        self.each("num_requests_waiting", "", |board| f64::from(board.stats.waiting));
        let by_reason = "num_requests_waiting_by_reason";
        self.family(by_reason, "gauge", "Number of waiting requests by reason.");
        self.each(by_reason, r#"reason="capacity""#, |board| f64::from(board.stats.waiting));
        self.each(by_reason, r#"reason="deferred""#, |_| 0.0);
        self.family("kv_cache_usage_perc", "gauge", "KV-cache usage. 1 means 100 percent usage.");
        self.each("kv_cache_usage_perc", "", |board| board.stats.kv_use);
    }

    fn cache_counters(&mut self) {
        let queries = "Prefix cache queries, in terms of number of queried tokens.";
        self.counter("prefix_cache_queries_total", queries, |board| board.stats.prefix_queries_tokens);
        let hits = "Prefix cache hits, in terms of number of cached tokens.";
        self.counter("prefix_cache_hits_total", hits, |board| board.stats.prefix_hits_tokens);
        let preemptions = "Cumulative number of preemption from the engine.";
        self.counter("num_preemptions_total", preemptions, |board| board.stats.preemptions);
    }

    fn token_counters(&mut self) {
        let prompt = "Number of prefill tokens processed.";
        self.counter("prompt_tokens_total", prompt, |board| board.meter.prompt_tokens);
        let name = "prompt_tokens_by_source_total";
        self.family(name, "counter", "Number of prompt tokens by source.");
        self.each(name, r#"source="local_compute""#, |Board { meter, .. }| {
            (meter.prompt_tokens - meter.cached_tokens) as f64
        });
        self.each(name, r#"source="local_cache_hit""#, |board| board.meter.cached_tokens as f64);
        self.each(name, r#"source="external_kv_transfer""#, |_| 0.0);
        let cached = "Number of cached prompt tokens (local + external).";
        self.counter("prompt_tokens_cached_total", cached, |board| board.meter.cached_tokens);
        let generated = "Number of generation tokens processed.";
        self.counter("generation_tokens_total", generated, |board| board.meter.generation_tokens);
    }

    fn request_success(&mut self) {
        let name = "request_success_total";
        self.family(name, "counter", "Count of successfully processed requests.");
        self.each(name, r#"finished_reason="stop""#, |board| board.meter.stopped as f64);
        self.each(name, r#"finished_reason="length""#, |board| board.meter.cut_by_length as f64);
        self.each(name, r#"finished_reason="abort""#, |board| board.meter.aborted as f64);
        self.each(name, r#"finished_reason="error""#, |_| 0.0);
    }

    fn histograms(&mut self) {
        self.histogram("request_prompt_tokens", "Number of prefill tokens processed.", |m| {
            &m.request_prompt_tokens
        });
        self.histogram("request_generation_tokens", "Number of generation tokens processed.", |m| {
            &m.request_generation_tokens
        });
        self.histogram("iteration_tokens_total", "Histogram of number of tokens per engine_step.", |m| {
            &m.iteration_tokens
        });
        let computed = "Histogram of new KV tokens computed during prefill (excluding cached tokens).";
        self.histogram("request_prefill_kv_computed_tokens", computed, |m| {
            &m.request_prefill_kv_computed_tokens
        });
        self.time_histograms();
    }

    fn time_histograms(&mut self) {
        type Time = (&'static str, &'static str, fn(&Meter) -> &Histogram);
        let times: [Time; 8] = [
            ("time_to_first_token_seconds", "time to first token", |m| &m.time_to_first_token),
            ("inter_token_latency_seconds", "inter-token latency", |m| &m.inter_token_latency),
            ("request_time_per_output_token_seconds", "time per output token per request", |m| {
                &m.request_time_per_output_token
            }),
            ("e2e_request_latency_seconds", "e2e request latency", |m| &m.e2e_request_latency),
            ("request_queue_time_seconds", "time spent in WAITING phase for request", |m| {
                &m.request_queue_time
            }),
            ("request_inference_time_seconds", "time spent in RUNNING phase for request", |m| {
                &m.request_inference_time
            }),
            ("request_prefill_time_seconds", "time spent in PREFILL phase for request", |m| {
                &m.request_prefill_time
            }),
            ("request_decode_time_seconds", "time spent in DECODE phase for request", |m| {
                &m.request_decode_time
            }),
        ];
        for (name, what, of) in times {
            self.histogram(name, &format!("Histogram of {what} in seconds."), of);
        }
    }

    fn cache_config(&mut self, config: &Config) {
        self.family("cache_config_info", "gauge", "Information of the LLMEngine CacheConfig");
        let caching = match config.engine.prefix_caching {
            PrefixCaching::On => "True",
            PrefixCaching::Off => "False",
        };
        let block_size = config.engine.block_size;
        for (engine, board) in self.boards.iter().enumerate() {
            let blocks = board.stats.blocks_total;
            let tokens = u64::from(blocks) * u64::from(block_size);
            let _ = writeln!(
                self.text,
                "vllm:cache_config_info{{block_size=\"{block_size}\",cache_dtype=\"auto\",\
                 enable_prefix_caching=\"{caching}\",engine=\"{engine}\",kv_cache_size_tokens=\"{tokens}\",\
                 num_cpu_blocks=\"None\",num_gpu_blocks=\"{blocks}\",prefix_caching_hash_algo=\"xxhash\"}} 1.0"
            );
        }
    }

    fn family(&mut self, name: &str, kind: &str, help: &str) {
        // Writing to a string cannot fail, here and below.
        let _ = writeln!(self.text, "# HELP vllm:{name} {help}\n# TYPE vllm:{name} {kind}");
    }

    fn counter(&mut self, name: &str, help: &str, of: fn(&Board) -> u64) {
        self.family(name, "counter", help);
        self.each(name, "", |board| of(board) as f64);
    }

    fn each(&mut self, name: &str, label: &str, of: impl Fn(&Board) -> f64) {
        for (engine, board) in self.boards.iter().enumerate() {
            let (before, after) = around_model(label);
            let value = Number(of(board));
            let _ = writeln!(
                self.text,
                "vllm:{name}{{engine=\"{engine}\"{before},model_name=\"{}\"{after}}} {value}",
                self.model
            );
        }
    }

    fn histogram(&mut self, name: &str, help: &str, of: impl Fn(&Meter) -> &Histogram) {
        self.family(name, "histogram", help);
        for (engine, board) in self.boards.iter().enumerate() {
            let labels = Labels { engine, model: &self.model };
            write_histogram(&mut self.text, name, &labels, of(&board.meter));
        }
    }
}

struct Labels<'a> {
    engine: usize,
    model: &'a str,
}

fn write_histogram(text: &mut String, name: &str, labels: &Labels<'_>, histogram: &Histogram) {
    let Labels { engine, model } = labels;
    let mut below = 0;
    for (bound, count) in histogram.bounds.iter().zip(&histogram.counts) {
        below += count;
        let (le, below) = (Number(*bound), Number(below as f64));
        let _ = writeln!(
            text,
            "vllm:{name}_bucket{{engine=\"{engine}\",le=\"{le}\",model_name=\"{model}\"}} {below}"
        );
    }
    let (count, sum) = (Number(histogram.count as f64), Number(histogram.sum));
    let _ = writeln!(
        text,
        "vllm:{name}_bucket{{engine=\"{engine}\",le=\"+Inf\",model_name=\"{model}\"}} {count}\n\
         vllm:{name}_count{{engine=\"{engine}\",model_name=\"{model}\"}} {count}\n\
         vllm:{name}_sum{{engine=\"{engine}\",model_name=\"{model}\"}} {sum}"
    );
}

/// vLLM writes labels in alphabetical order: a further label stands before or after `model_name`.
fn around_model(label: &str) -> (String, String) {
    match label {
        "" => (String::new(), String::new()),
        label if label < "model_name" => (format!(",{label}"), String::new()),
        label => (String::new(), format!(",{label}")),
    }
}

fn escape(label: &str) -> String {
    label.replace('\\', r"\\").replace('"', "\\\"").replace('\n', r"\n")
}

/// A number as Python prints it: whole ones with `.0`.
struct Number(f64);

impl Display for Number {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use warmroute_engine::{EngineStats, Profile};

    fn page(boards: &[Board]) -> String {
        let mut config = Config::for_profile(Profile::Llama3_1_8b);
        config.model = "ti\"ny".to_owned();
        render(&config, boards)
    }

    #[test]
    fn every_line_is_a_comment_or_a_sample_of_a_declared_family() {
        let page = page(&[Board::new(EngineStats::default(), 768), Board::new(EngineStats::default(), 768)]);
        let mut family = "";
        for line in page.lines() {
            if let Some(declared) = line.strip_prefix("# TYPE ") {
                family = declared.split(' ').next().unwrap();
            } else if !line.starts_with('#') {
                assert!(line.starts_with(family), "{line} is not of {family}");
                line.rsplit(' ').next().unwrap().parse::<f64>().unwrap();
            }
        }
    }

    #[test]
    fn labels_stand_in_vllms_order_and_are_escaped() {
        let page = page(&[Board::new(EngineStats { waiting: 3, ..EngineStats::default() }, 768)]);
        for line in [
            r#"vllm:num_requests_waiting{engine="0",model_name="ti\"ny"} 3.0"#,
            r#"vllm:request_success_total{engine="0",finished_reason="stop",model_name="ti\"ny"} 0.0"#,
            r#"vllm:num_requests_waiting_by_reason{engine="0",model_name="ti\"ny",reason="capacity"} 3.0"#,
            r#"vllm:time_to_first_token_seconds_bucket{engine="0",le="0.001",model_name="ti\"ny"} 0.0"#,
        ] {
            assert!(page.lines().any(|l| l == line), "no {line}");
        }
    }
}
