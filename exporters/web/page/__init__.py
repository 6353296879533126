"""The status page: verdict, findings and readings of the node as HTML, without scripts and external resources."""
