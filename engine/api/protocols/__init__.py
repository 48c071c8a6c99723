"""Response structs of other programs' protocols, limited to the fields that their clients rely on."""
