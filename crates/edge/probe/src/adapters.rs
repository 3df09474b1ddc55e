//! Reads which LoRA adapters an engine works with, from its Prometheus page.
//!
//! vLLM's `lora_requests_info` has the names as labels and the time as its value. Each combination of names that ever
//! occurred is a line of its own, so the latest line counts.

/// The adapters of an engine's running and waiting requests, and how many it can hold.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AdapterReport {
    /// Names, without repetition.
    pub names: Vec<Box<str>>,
    /// How many fit, if the engine says so.
    pub slots: Option<u32>,
}

/// Longer lists are cut.
const NAMES_MAX: usize = 256;

/// Reads the report; `None` if the page has none.
pub fn read_adapters(page: &[u8]) -> Option<AdapterReport> {
    let lines = page.split(|&byte| byte == b'\n');
    let lines = lines.filter(|line| line.starts_with(b"vllm:lora_requests_info{"));
    let mut latest: Option<(f64, &str)> = None;
    for line in lines.filter_map(|line| std::str::from_utf8(line).ok()) {
        let Some((labels, value)) = line.rsplit_once(' ') else { continue };
        let Ok(at) = value.parse::<f64>() else { continue };
        if latest.is_none_or(|(known, _)| at >= known) {
            latest = Some((at, labels));
        }
    }
    let (_, labels) = latest?;
    let mut report = AdapterReport { names: Vec::new(), slots: label(labels, "max_lora").parse().ok() };
    for list in ["running_lora_adapters", "waiting_lora_adapters"] {
        for name in label(labels, list).split(',').filter(|name| !name.is_empty()) {
            if report.names.len() < NAMES_MAX && !report.names.iter().any(|known| **known == *name) {
                report.names.push(name.into());
            }
        }
    }
    Some(report)
}

/// The value of a label; empty if it is absent.
fn label<'a>(labels: &'a str, name: &str) -> &'a str {
    let start = format!("{name}=\"");
    let rest = labels.split_once(&start).map_or("", |(_, rest)| rest);
    rest.split('"').next().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_latest_line_counts() {
        let page = b"# TYPE vllm:lora_requests_info gauge\n\
            vllm:lora_requests_info{max_lora=\"4\",running_lora_adapters=\"\",waiting_lora_adapters=\"\"} 1.7e9\n\
            vllm:lora_requests_info{max_lora=\"4\",running_lora_adapters=\"sql,chat\",waiting_lora_adapters=\"sql,law\"} 1.7000001e9\n\
            vllm:lora_requests_info{max_lora=\"4\",running_lora_adapters=\"old\",waiting_lora_adapters=\"\"} 1.69e9\n";
        let names = ["sql", "chat", "law"].map(Box::from).to_vec();
        assert_eq!(read_adapters(page), Some(AdapterReport { names, slots: Some(4) }));
        assert_eq!(read_adapters(b"vllm:num_requests_running{} 1\n"), None);
        let odd = read_adapters(b"vllm:lora_requests_info{} x\nvllm:lora_requests_info{a=\"b\"} 2\n");
        assert_eq!(odd, Some(AdapterReport::default()));
    }
}
