package importmode

import _ "github.com/openshift/api/config/v1" // its module folder holds the CRDs
