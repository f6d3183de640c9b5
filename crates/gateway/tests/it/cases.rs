//! The starting cases, and where each of them is.

/// Cases, with the test that has their kind; nothing where no surface has it yet.
const CASES: [(&str, Option<&str>); 20] = [
    ("S-01", Some("addresses::no_spelling_of_an_internal_address_is_reached")),
    ("S-02", Some("addresses::no_spelling_of_an_internal_address_is_reached")),
    ("D-01", Some("names::a_second_answer_gains_nothing")),
    ("D-02", Some("names::one_internal_answer_refuses_the_name")),
    ("C-01", Some("names::what_is_refused_is_not_looked_up")),
    ("C-02", Some("proxy::a_tunnel_names_its_host")),
    ("M-01", Some("smuggling::nothing_is_smuggled")),
    ("M-02", Some("smuggling::nothing_is_smuggled")),
    ("H-01", Some("intercepted::http2_names_its_host")),
    ("H-02", Some("intercepted::http2_has_one_length")),
    ("K-01", None),
    ("K-02", None),
    ("B-01", None),
    ("B-02", None),
    ("W-01", Some("names::an_empty_list_permits_nothing")),
    ("W-02", Some("names::names_are_compared_by_label")),
    ("X-01", None),
    ("X-02", None),
    ("P-01", None),
    ("N-02", Some("names::what_is_refused_is_not_looked_up")),
];

#[test]
fn every_case_is_somewhere() {
    for (case, test) in CASES {
        match test {
            Some(test) => println!("{case}: {test}"),
            None => println!("{case}: not run: surface missing"),
        }
    }
    let sources = [
        include_str!("addresses.rs"),
        include_str!("names.rs"),
        include_str!("proxy.rs"),
        include_str!("smuggling.rs"),
        include_str!("intercepted.rs"),
    ];
    for test in CASES.iter().filter_map(|(_, test)| *test) {
        let name = test.rsplit(':').next().unwrap();
        let found = sources.iter().any(|source| source.contains(&format!("fn {name}(")));
        assert!(found, "{test} does not exist");
    }
}
