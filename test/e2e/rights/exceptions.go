package rights

// hook is the ServiceAccount of the hook Jobs.
const hook = "zarf:zarf-registry-hook"

// Exceptions are the rights that TestLeastPrivilege does not use, and the tests that do.
var Exceptions = []Exception{
	{Verb: "create", Resource: "pods/portforward", Scenario: "TestLeastPrivilege",
		Why: "Kubernetes 1.35 and later authorize create for upgrades to WebSocket, which is no event of the audit log; " +
			"before 1.30, SPDY needs it"},
	{Account: hook, Verb: "list", Resource: "events",
		Scenario: "TestHelm/after_a_switch_whose_verification_fails,_the_node_port_is_served_again",
		Why:      "to say why pods are not ready"},
	{Account: hook, Verb: "list", Resource: "persistentvolumes", Scenario: "TestMistakes",
		Why: "a unit test: whether there is a volume without a StorageClass that exists"},
	{Account: hook, Verb: "delete", Resource: "persistentvolumeclaims", Name: "zarf-registry",
		Scenario: "TestPrepareReplacesAClaimWithoutAVolume", Why: "a unit test: a claim that never got a volume"},
	{Account: hook, Verb: "create", Resource: "certificates.cert-manager.io",
		Scenario: "TestCertificates/helm_upgrade_to_certManager"},
	{Account: hook, Verb: "list", Resource: "certificaterequests.cert-manager.io",
		Scenario: "TestCertificates/helm_upgrade_to_certManager", Why: "preflight"},
	{Account: hook, Verb: "delete", Resource: "*.cert-manager.io",
		Scenario: "TestCertificateSources/helm_upgrade_to_existingSecret", Why: "what the previous mode left"},
	{Account: hook, Verb: "delete", Resource: "secrets", Name: "zarf-registry-*-issued",
		Scenario: "TestCertificateSources/helm_upgrade_to_existingSecret", Why: "what the previous mode left"},
	{Account: hook, Verb: "patch", Resource: "certificates.cert-manager.io",
		Scenario: "TestCertificates/helm_upgrade_to_certManager"},
	{Account: hook, Verb: "update", Resource: "certificates/status.cert-manager.io",
		Scenario: "TestAFailureOfAnEarlierRunIsTriedAgain", Why: "a unit test: cert-manager retries after an hour only"},
}
