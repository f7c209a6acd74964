package mirrors

// The ConfigMap by which the mirror controller hands its result to the provider
// and to the node agents.
const (
	KeyConf     = "registries.conf"
	KeySHA256   = "sha256"      // of the bytes under KeyConf, in hexadecimal digits
	KeyDelivery = "delivery"    // a Delivery, never DeliveryAuto
	KeyPolicy   = "policy.json" // when it is asked for
)

// Delivery says how far the merged file goes.
type Delivery string

// The deliveries. All of them write the ConfigMap.
const (
	// DeliveryAuto is Inspector where the machine-config operator runs, else Nodes.
	DeliveryAuto Delivery = "auto"
	// DeliveryInspector: the provider alone uses the file.
	DeliveryInspector Delivery = "inspector"
	// DeliveryNodes: node agents write it to their nodes.
	DeliveryNodes Delivery = "nodes"
	// DeliveryMachineConfig: the machine-config operator brings it to the nodes.
	DeliveryMachineConfig Delivery = "machineconfig"
)
