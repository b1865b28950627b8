"""The KCL's MultiLang daemon without Java: record processors in child processes or, for kclpy, in this process."""
