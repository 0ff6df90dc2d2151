"""Running on real sites: settings of server and sites, certificates, processes, commands."""
