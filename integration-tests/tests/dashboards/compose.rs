//! docker-compose.yml: mounted files exist, and scrape targets are served.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use crate::{files, yaml};

fn services() -> BTreeMap<String, Value> {
    let compose = yaml::file("docker-compose.yml");
    compose["services"].as_object().unwrap().clone().into_iter().collect()
}

fn texts(value: &Value) -> Vec<String> {
    value.as_array().into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect()
}

/// Returns the metrics addresses configured in the services, as `name:port`.
fn served() -> BTreeSet<String> {
    let address = |service: &Value| {
        let words: Vec<_> = service["command"].as_str()?.split_whitespace().map(str::to_owned).collect();
        let is_shop = texts(&service["entrypoint"]) == ["observe"];
        let flag = words.iter().position(|word| word == if is_shop { "--listen" } else { "--metrics" })?;
        words.get(flag + 1)?.strip_prefix("0.0.0.0:").map(str::to_owned)
    };
    services().iter().filter_map(|(name, service)| Some(format!("{name}:{}", address(service)?))).collect()
}

#[test]
fn prometheus_scrapes_exactly_what_serves_metrics() {
    let config = yaml::file("dashboards/prometheus.yml");
    let jobs = config["scrape_configs"].as_array().unwrap();
    let statics = jobs.iter().flat_map(|job| job["static_configs"].as_array().unwrap().iter());
    let targets: BTreeSet<String> = statics.flat_map(|one| texts(&one["targets"])).collect();
    assert_eq!(targets, served());
    assert!(["a:9464", "b:9464", "c:9464"].iter().all(|target| targets.contains(*target)));
}

#[test]
fn mounted_files_exist_and_are_mounted_where_they_are_used() {
    let mut mounted = BTreeMap::new();
    for (name, service) in services() {
        for volume in texts(&service["volumes"]) {
            let [from, to, mode] = volume.split(':').collect::<Vec<_>>()[..] else { panic!("{name} mounts {volume}") };
            assert_eq!(mode, "ro", "{name} may write to {from}");
            let from = from.strip_prefix("./").unwrap_or_else(|| panic!("{name} mounts {from}")).to_owned();
            assert!(files::path(&from).exists(), "{name} mounts {from}, which does not exist");
            mounted.insert(to.to_owned(), from);
        }
    }
    let of = |place: &str| mounted.get(place).unwrap_or_else(|| panic!("nothing at {place}")).as_str();
    assert_eq!(of("/etc/prometheus/prometheus.yml"), "dashboards/prometheus.yml");
    for rules in texts(&yaml::file("dashboards/prometheus.yml")["rule_files"]) {
        assert_eq!(of(&rules), "dashboards/alerts.yml");
    }
    let provisioning = of("/etc/grafana/provisioning");
    let providers = yaml::file(&format!("{provisioning}/dashboards/phalanx.yml"));
    let folder = providers["providers"][0]["options"]["path"].as_str().unwrap();
    assert_eq!(of(&format!("{folder}/phalanx.json")), "dashboards/grafana.json");
    let home = services()["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"].clone();
    assert_eq!(of(home.as_str().unwrap()), "dashboards/grafana.json");
}

#[test]
fn grafana_finds_prometheus() {
    let sources = yaml::file("dashboards/provisioning/datasources/prometheus.yml");
    let url = sources["datasources"][0]["url"].as_str().unwrap().to_owned();
    assert_eq!(sources["datasources"][0]["type"], "prometheus");
    let (host, port) = url.strip_prefix("http://").and_then(|rest| rest.split_once(':')).unwrap();
    let prometheus = &services()[host];
    assert!(texts(&prometheus["ports"]).iter().any(|ports| ports.ends_with(&format!(":{port}"))));
}

#[test]
fn only_observability_services_need_the_profile_and_ports_are_on_loopback() {
    for (name, service) in services() {
        let observes = ["shop", "prometheus", "grafana"].contains(&name.as_str());
        assert_eq!(texts(&service["profiles"]), if observes { vec!["observe"] } else { vec![] }, "{name}");
        for ports in texts(&service["ports"]) {
            assert!(ports.starts_with("127.0.0.1:"), "{name}: {ports}");
        }
        for other in texts(&service["depends_on"]) {
            assert!(services().contains_key(&other), "{name} depends on {other}, which does not exist");
        }
    }
}

#[test]
fn the_image_contains_what_the_services_run() {
    let dockerfile = files::text("Dockerfile");
    for part in ["--features prometheus", "--example fleet", "--example observe", "ENTRYPOINT [\"fleet\"]"] {
        assert!(dockerfile.contains(part), "no {part:?} in the Dockerfile");
    }
}
